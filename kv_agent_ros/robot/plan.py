"""The plan language: steps in order, and branches whose condition is evaluated once, when first reached.

A plan is data. Its JSON form is nested ({"plan": [step, {"if": condition, "then": [...], "else": [...]}]}); in
memory it is flat: each step names the branch and arm it belongs to, each branch names its parent. The model's text
becomes a Plan only through `plan_from_json`, which refuses what it does not know.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
import hashlib
import json
import math

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.robot.base import Argument, Step

MAX_STEPS = 64
MAX_DEPTH = 4
Json = None | bool | int | float | str | Sequence['Json'] | Mapping[str, 'Json']


class Operator(Enum):
    """How a property is compared with the condition's value."""

    AT_LEAST = '>='
    AT_MOST = '<='
    EQUAL = '=='


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """`target`.`property` `operator` `value`, e.g. cup.fill_level >= 0.9; `target` as in Step arguments."""

    target: str
    property: str
    operator: Operator
    value: Argument

    def __str__(self) -> str:
        return f'{self.target}.{self.property} {self.operator.value} {self.value}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A decision point. `branch_id` counts from 1; `parent_id` 0 = top level, `parent_arm` the arm it stands in."""

    branch_id: int
    condition: Condition
    parent_id: int = 0
    parent_arm: bool = True


class PlanSource(Enum):
    """Who wrote the plan; always reported."""

    MODEL = 'model'
    RULE = 'rule'
    PROGRAM = 'program'
    OPERATOR = 'operator'


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the planner proposes and the harness judges."""

    steps: tuple[Step, ...]
    branches: tuple[Branch, ...] = ()
    source: PlanSource = PlanSource.OPERATOR

    @property
    def plan_id(self) -> str:
        """Digest of the content: plans that do the same have equal ids, whoever wrote them, and only those."""
        content = [[_step_digest(step) for step in self.steps], [_branch_digest(branch) for branch in self.branches]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _step_digest(step: Step) -> list[Json]:
    arguments = {name: _number_or_text(value) for name, value in step.arguments.items()}
    return [step.skill, arguments, step.branch_id, step.arm or not step.branch_id]


def _branch_digest(branch: Branch) -> list[Json]:
    condition = branch.condition
    compared: list[Json] = [condition.target, condition.property, condition.operator.value]
    arm = branch.parent_arm or not branch.parent_id
    return [*compared, _number_or_text(condition.value), branch.branch_id, branch.parent_id, arm]


def _number_or_text(value: Argument) -> Argument:
    return value if isinstance(value, str) else float(value)


def plan_to_json(plan: Plan) -> dict[str, Json]:
    """The nested JSON form; `plan_from_json` reads it back."""
    return {'plan': _arm_to_json(plan, 0, True)}


def _arm_to_json(plan: Plan, branch_id: int, arm: bool) -> list[Json]:
    nodes: list[Json] = []
    seen: set[int] = set()
    for step in plan.steps:
        top = _child_towards(plan, step, branch_id, arm)
        if top is None:
            continue
        if top == 0:
            nodes.append({'skill': step.skill, **step.arguments})
        elif top not in seen:
            seen.add(top)
            nodes.append(_branch_to_json(plan, top))
    return nodes


def _branch_to_json(plan: Plan, branch_id: int) -> dict[str, Json]:
    condition = plan.branches[branch_id - 1].condition
    node: dict[str, Json] = {
        'if': {
            'target': condition.target,
            'property': condition.property,
            'operator': condition.operator.value,
            'value': condition.value,
        },
        'then': _arm_to_json(plan, branch_id, True),
    }
    otherwise = _arm_to_json(plan, branch_id, False)
    if otherwise:
        node['else'] = otherwise
    return node


def _child_towards(plan: Plan, step: Step, branch_id: int, arm: bool) -> int | None:
    """0 when the step stands directly in the arm, the child branch that holds it, None when it stands elsewhere."""
    at, at_arm, child = step.branch_id, step.arm, 0
    while at != branch_id or (at and at_arm != arm):  # there is no arm at the top
        if at == 0:
            return None
        child = at
        at, at_arm = plan.branches[at - 1].parent_id, plan.branches[at - 1].parent_arm
    return child


def plan_from_json(document: Json, source: PlanSource) -> Plan:
    """Read the nested form. Raises BadRequestError naming the first thing that is not plan language."""
    if not isinstance(document, Mapping) or set(document) != {'plan'}:
        raise BadRequestError(f'plan: expected an object with the one key "plan", got {_brief(document)}')
    steps: list[Step] = []
    branches: list[Branch] = []
    _read_arm(document['plan'], 0, True, steps, branches, 1)
    if not steps:
        raise BadRequestError('plan: expected at least one step, got none')
    return Plan(steps=tuple(steps), branches=tuple(branches), source=source)


def _read_arm(nodes: Json, branch_id: int, arm: bool, steps: list[Step], branches: list[Branch], depth: int) -> None:
    if not isinstance(nodes, Sequence) or isinstance(nodes, str):
        raise BadRequestError(f'plan: expected a list of steps, got {_brief(nodes)}')
    if depth > MAX_DEPTH:
        raise BadRequestError(f'plan: expected at most {MAX_DEPTH} nested levels')
    for node in nodes:
        if not isinstance(node, Mapping):
            raise BadRequestError(f'plan: expected a step or an "if", got {_brief(node)}')
        if 'if' in node:
            _read_branch(node, branch_id, arm, steps, branches, depth)
        else:
            steps.append(_read_step(node, branch_id, arm))
        if len(steps) > MAX_STEPS:
            raise BadRequestError(f'plan: expected at most {MAX_STEPS} steps')


def _read_step(node: Mapping[str, Json], branch_id: int, arm: bool) -> Step:
    skill = node.get('skill')
    if not isinstance(skill, str) or not skill:
        raise BadRequestError(f'plan: expected "skill" to be a name, got {_brief(node)}')
    arguments = {name: _argument(name, value) for name, value in node.items() if name != 'skill'}
    return Step(skill=skill, arguments=arguments, branch_id=branch_id, arm=arm)


def _read_branch(
    node: Mapping[str, Json], branch_id: int, arm: bool, steps: list[Step], branches: list[Branch], depth: int
) -> None:
    unknown = set(node) - {'if', 'then', 'else'}
    if unknown or 'then' not in node:
        raise BadRequestError(f'plan: an "if" takes "then" and "else", got {sorted(node)}')
    own_id = len(branches) + 1
    branches.append(
        Branch(branch_id=own_id, condition=_read_condition(node['if']), parent_id=branch_id, parent_arm=arm)
    )
    _read_arm(node['then'], own_id, True, steps, branches, depth + 1)
    if 'else' in node:
        _read_arm(node['else'], own_id, False, steps, branches, depth + 1)


def _read_condition(node: Json) -> Condition:
    if not isinstance(node, Mapping) or set(node) != {'target', 'property', 'operator', 'value'}:
        raise BadRequestError(f'plan: a condition has target, property, operator and value, got {_brief(node)}')
    target, name, operator = node['target'], node['property'], node['operator']
    if not isinstance(target, str) or not isinstance(name, str) or operator not in {o.value for o in Operator}:
        raise BadRequestError(f'plan: malformed condition {_brief(node)}')
    return Condition(target=target, property=name, operator=Operator(operator), value=_argument('value', node['value']))


def _argument(name: str, value: Json) -> Argument:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise BadRequestError(f'plan: argument {name!r}: expected a string or a finite number, got {_brief(value)}')


def _brief(value: Json) -> str:
    return repr(value)[:80]


def enclosing_arms(plan: Plan, step: Step) -> Iterator[tuple[Branch, bool]]:
    """The branches around a step with the arm it needs, innermost first."""
    at, arm = step.branch_id, step.arm
    while at:
        branch = plan.branches[at - 1]
        yield branch, arm
        at, arm = branch.parent_id, branch.parent_arm
