"""Drafted programs: a Python subset that is parsed and compiled to a Plan, and never executed.

Allowed are calls of registered skills by bare name with literals, `if prop('cup', 'fill_level') >= 0.9:` with elif and
else, and `for x in [...]` or `range(n)`, which is unrolled. Everything else is refused by name. Since the text becomes
data, which the gate then judges like any plan, no sandbox process is needed: there is no code to contain.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
import math
import unicodedata
import warnings

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.robot.base import Argument, ArgumentKind, Skill, Step
from kv_agent_ros.robot.plan import (
    MAX_DEPTH,
    MAX_STEPS,
    Branch,
    Condition,
    Operator,
    Plan,
    PlanSource,
    plan_from_json,
    plan_to_json,
)
from kv_agent_ros.robot.skills import skill_by_name

MAX_CHARS = 8000
MAX_NODES = 1000
MAX_NESTING = 20  # indentation and brackets together
MAX_LITERAL_CHARS = 100
MAX_LOOP = 16  # turns of one loop
PROPERTY = 'prop'
OPERATORS: Mapping[type[ast.cmpop], Operator] = {
    ast.GtE: Operator.AT_LEAST,
    ast.LtE: Operator.AT_MOST,
    ast.Eq: Operator.EQUAL,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scope:
    """Where a statement stands: its branch and arm, how deep, and the loop variables around it."""

    branch_id: int = 0
    arm: bool = True
    depth: int = 1
    variables: Mapping[str, Argument] = field(default_factory=dict)


def compile_program(text: str, skills: tuple[Skill, ...]) -> Plan:
    """The plan that a drafted program means. Raises BadRequestError with the line and what is not in the language."""
    tree = _parse(text)
    compiler = _Compiler(skill_by_name(skills))
    compiler.block(tree.body, _Scope())
    if not compiler.steps:
        raise BadRequestError('program: expected at least one call of a skill, got none')
    drafted = Plan(steps=tuple(compiler.steps), branches=tuple(compiler.branches))
    return plan_from_json(plan_to_json(drafted), PlanSource.PROGRAM)  # without the branches that hold no step


def _parse(text: str) -> ast.Module:
    if len(text) > MAX_CHARS:
        raise BadRequestError(f'program: expected at most {MAX_CHARS} characters, got {len(text)}')
    hidden = sorted({f'U+{ord(char):04X}' for char in text if _is_hidden(char)})
    if hidden:
        raise BadRequestError(f'program: expected visible characters, got {", ".join(hidden)}')
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, Warning) as error:
        raise BadRequestError(f'program: expected the Python subset: {error}') from error
    _check_size(tree)
    return tree


def _is_hidden(char: str) -> bool:
    """Control, format (bidirectional overrides, zero width), surrogate and unassigned characters."""
    return char not in '\n\t' and unicodedata.category(char) in {'Cc', 'Cf', 'Cs', 'Co', 'Cn'}


def _check_size(tree: ast.Module) -> None:
    num_nodes = 0
    level: list[ast.AST] = [tree]
    for _ in range(MAX_NESTING):
        num_nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise BadRequestError(f'program: expected at most {MAX_NESTING} nested levels')
    if num_nodes > MAX_NODES:
        raise BadRequestError(f'program: expected at most {MAX_NODES} syntax nodes, got {num_nodes}')


class _Compiler:
    """Walks the statements once and collects steps and branches in order."""

    def __init__(self, skills: Mapping[str, Skill]) -> None:
        self.steps: list[Step] = []
        self.branches: list[Branch] = []
        self._skills = skills

    def block(self, statements: list[ast.stmt], scope: _Scope) -> None:
        """Compile statements that stand in one arm."""
        if scope.depth > MAX_DEPTH:
            raise _refusal(statements[0], f'expected at most {MAX_DEPTH} nested ifs')
        for statement in statements:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self._call(statement.value, scope)
            elif isinstance(statement, ast.If):
                self._branch(statement, scope)
            elif isinstance(statement, ast.For):
                self._loop(statement, scope)
            elif not isinstance(statement, ast.Pass):
                raise _refusal(statement, f'expected a skill call, if or for, got {_kind(statement)}')

    def _call(self, call: ast.Call, scope: _Scope) -> None:
        if not isinstance(call.func, ast.Name) or call.func.id not in self._skills:
            got = call.func.id if isinstance(call.func, ast.Name) else _kind(call.func)
            raise _refusal(call, f'expected one of {", ".join(self._skills)}, got {got[:MAX_LITERAL_CHARS]}')
        if len(self.steps) >= MAX_STEPS:
            raise _refusal(call, f'expected at most {MAX_STEPS} steps after unrolling')
        arguments = self._arguments(call, self._skills[call.func.id], scope)
        self.steps.append(Step(skill=call.func.id, arguments=arguments, branch_id=scope.branch_id, arm=scope.arm))

    def _arguments(self, call: ast.Call, skill: Skill, scope: _Scope) -> dict[str, Argument]:
        parameters = {parameter.name: parameter for parameter in skill.parameters}
        if len(call.args) > len(parameters):
            raise _refusal(call, f'{skill.name} takes {len(parameters)} arguments, got {len(call.args)}')
        named = list(zip(parameters, call.args, strict=False))
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg not in parameters:
                raise _refusal(call, f'{skill.name} takes {sorted(parameters)}, got {keyword.arg or "**"}')
            named.append((keyword.arg, keyword.value))
        arguments = {name: _literal(node, scope) for name, node in named}
        if len(arguments) != len(named):
            raise _refusal(call, f'{skill.name}: expected each argument once')
        for name, value in arguments.items():
            if isinstance(value, str) is (parameters[name].kind is ArgumentKind.NUMBER):
                raise _refusal(call, f'{skill.name}: {name}: expected a {parameters[name].kind.value}, got {value!r}')
        return arguments

    def _branch(self, statement: ast.If, scope: _Scope) -> None:
        branch_id = len(self.branches) + 1
        condition = _condition(statement.test, scope)
        self.branches.append(
            Branch(branch_id=branch_id, condition=condition, parent_id=scope.branch_id, parent_arm=scope.arm)
        )
        for arm, statements in ((True, statement.body), (False, statement.orelse)):
            if statements:
                inner = _Scope(branch_id=branch_id, arm=arm, depth=scope.depth + 1, variables=scope.variables)
                self.block(statements, inner)

    def _loop(self, loop: ast.For, scope: _Scope) -> None:
        if not isinstance(loop.target, ast.Name) or loop.orelse:
            raise _refusal(loop, 'expected "for name in ...:" without else')
        if loop.target.id in self._skills or loop.target.id == PROPERTY:
            raise _refusal(loop, f'expected a variable name, got the skill {loop.target.id}')
        for value in _loop_values(loop.iter, scope):
            inner = {**scope.variables, loop.target.id: value}
            self.block(
                loop.body,
                _Scope(branch_id=scope.branch_id, arm=scope.arm, depth=scope.depth, variables=inner),
            )


def _condition(test: ast.expr, scope: _Scope) -> Condition:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in OPERATORS:
        raise _refusal(test, f"expected prop('object', 'property') with one of >=, <=, ==, got {_kind(test)}")
    left = test.left
    is_property = isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == PROPERTY
    if not isinstance(left, ast.Call) or not is_property or len(left.args) != 2 or left.keywords:
        raise _refusal(test, "expected prop('object', 'property') on the left")
    target, name = (_literal(argument, scope) for argument in left.args)
    if not isinstance(target, str) or not isinstance(name, str):
        raise _refusal(test, "expected two names in prop('object', 'property')")
    value = _literal(test.comparators[0], scope)
    return Condition(target=target, property=name, operator=OPERATORS[type(test.ops[0])], value=value)


def _loop_values(node: ast.expr, scope: _Scope) -> Iterator[Argument]:
    if isinstance(node, (ast.List, ast.Tuple)):
        if len(node.elts) > MAX_LOOP:
            raise _refusal(node, f'expected at most {MAX_LOOP} turns, got {len(node.elts)}')
        yield from (_literal(element, scope) for element in node.elts)
        return
    is_range = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'range'
    if not isinstance(node, ast.Call) or not is_range or len(node.args) != 1 or node.keywords:
        raise _refusal(node, f'expected a list of literals or range(n), got {_kind(node)}')
    count = _literal(node.args[0], scope)
    if isinstance(count, str) or not count.is_integer() or not 0 <= count <= MAX_LOOP:
        raise _refusal(node, f'expected range(0..{MAX_LOOP}), got range({count})')
    yield from (float(turn) for turn in range(int(count)))


def _literal(node: ast.expr, scope: _Scope) -> Argument:
    """A string, a finite number, or the value of a loop variable."""
    if isinstance(node, ast.Name):
        if node.id not in scope.variables:
            raise _refusal(node, f'expected a literal, got the name {node.id[:MAX_LITERAL_CHARS]}; put names in quotes')
        return scope.variables[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        folded = unicodedata.normalize('NFKC', node.value)
        if not folded or len(folded) > MAX_LITERAL_CHARS or any(_is_hidden(char) or char in '\n\t' for char in folded):
            raise _refusal(node, f'expected 1 to {MAX_LITERAL_CHARS} visible characters')
        return folded
    return _number(node)


def _number(node: ast.expr) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _refusal(node, f'expected a string or a number, got {_kind(node)}')
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _refusal(node, 'expected a finite number')
    return number


def _refusal(node: ast.expr | ast.stmt, message: str) -> BadRequestError:
    return BadRequestError(f'program line {node.lineno}: {message}')


def _kind(node: ast.AST) -> str:
    return type(node).__name__
