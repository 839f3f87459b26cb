"""Drafted programs become plans or are refused; nothing in them ever runs."""

import time

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.harness.skill_language import compile_program
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Operator, PlanSource, plan_from_json, plan_to_json
from kv_agent_ros.robot.skills import HOUSEHOLD_SKILLS

PROGRAM = """
# pour half of a full cup
navigate('kitchen_counter', speed_mps=0.4)
inspect('cup')
if prop('cup', 'fill_level') >= 0.9:
    pick('cup')
    navigate('sink')
    pour(target='sink', fraction=0.5)
elif prop('cup', 'fill_level') <= 0.1:
    find('bowl')
else:
    wait(2)
dock()
"""


def test_program_becomes_a_plan_with_branches() -> None:
    plan = compile_program(PROGRAM, HOUSEHOLD_SKILLS)
    assert plan.source is PlanSource.PROGRAM
    assert [step.skill for step in plan.steps] == [
        'navigate', 'inspect', 'pick', 'navigate', 'pour', 'find', 'wait', 'dock',
    ]  # fmt: skip
    assert plan.steps[0].arguments == {'target': 'kitchen_counter', 'speed_mps': 0.4}
    assert [(step.branch_id, step.arm) for step in plan.steps[2:7]] == [
        (1, True), (1, True), (1, True), (2, True), (2, False),
    ]  # fmt: skip
    assert plan.branches[0].condition.operator is Operator.AT_LEAST
    assert (plan.branches[1].parent_id, plan.branches[1].parent_arm) == (1, False)
    assert plan_from_json(plan_to_json(plan), PlanSource.PROGRAM) == plan


def test_loops_are_unrolled() -> None:
    plan = compile_program(
        "for room in ['table', 'sink']:\n  navigate(room)\nfor i in range(2):\n  wait(i)", HOUSEHOLD_SKILLS
    )
    assert plan.steps == (
        Step(skill='navigate', arguments={'target': 'table'}),
        Step(skill='navigate', arguments={'target': 'sink'}),
        Step(skill='wait', arguments={'duration_s': 0.0}),
        Step(skill='wait', arguments={'duration_s': 1.0}),
    )


ESCAPES = [
    '',
    'pass',
    '# nothing',
    'import os',
    'from os import system',
    '__import__("os").system("id")',
    'eval("1")',
    'exec("import os")',
    'open("/etc/passwd").read()',
    'open(open)',
    '"{0.__class__}".format(1)',
    "navigate('{0.__class__}'.format(1))",
    "navigate('{x.__class__}'.format_map({}))",
    'navigate(().__class__.__base__.__subclasses__())',
    'navigate.__globals__',
    'navigate.__call__("kitchen")',
    'getattr(navigate, "x")()',
    '(lambda: 1)()',
    '(navigate)("kitchen")("sink")',
    'navigate(10**10**8)',
    "navigate('a'*10**9)",
    'wait(1 + 1)',
    'wait(1e999)',
    'wait(-1e999)',
    'wait(1j)',
    'wait(True)',
    'wait(None)',
    'wait(...)',
    "wait('1')",
    'wait(b"x")',
    'navigate(1)',
    'navigate(f"{1}")',
    'navigate("kitchen"[0])',
    'navigate(["kitchen"])',
    'navigate({"a": 1})',
    'navigate(*["kitchen"])',
    'navigate(**{"target": "kitchen"})',
    'navigate("kitchen", target="sink")',
    'navigate("kitchen", 0.5, 1)',
    'navigate("kitchen", nose=1)',
    'navigate(kitchen)',
    'navigate("")',
    'navigate("a\\nb")',
    'navigate("' + 'a' * 101 + '")',
    'while True: dock()',
    'for x in iter(int, 1): dock()',
    'for x in range(10**9): dock()',
    'for x in range(17): dock()',
    'for x in range(1.5): dock()',
    'for x in range(-1): dock()',
    'for x in "abc": dock()',
    'for x, y in []: dock()',
    'for dock in [1]: dock()',
    'for place in [1]: dock()',
    'for prop in [1]: wait(1)',
    'for a in range(9):\n for b in range(9):\n  dock()',
    'for x in [1]:\n dock()\nelse:\n dock()',
    'x = navigate',
    'x = 1\nwait(x)',
    'x: int = 1',
    'navigate = open',
    'del dock',
    'def f(): dock()',
    'async def f(): await dock()',
    'class A: pass',
    'try:\n dock()\nexcept: pass',
    'with dock(): pass',
    'raise dock',
    'assert dock()',
    'global dock',
    'return dock()',
    'yield dock()',
    '[dock() for _ in range(3)]',
    '{dock(): 1}',
    'dock() and dock()',
    'dock() if 1 else dock()',
    'dock() or exec("1")',
    'dock',
    '"text"',
    'match 1:\n case 1: dock()',
    'if True: dock()',
    'if prop("cup", "fill_level"): dock()',
    'if prop("cup", "fill_level") > 0.9: dock()',
    'if prop("cup", "fill_level") != 0.9: dock()',
    'if 0 <= prop("cup", "fill_level") <= 1: dock()',
    'if prop("cup", "fill_level") >= 0.9 and True: dock()',
    'if prop("cup") >= 0.9: dock()',
    'if prop(1, 2) >= 0.9: dock()',
    'if prop("cup", "fill_level") >= prop("b", "c"): dock()',
    'if navigate("kitchen") >= 0.9: dock()',
    'if (x := dock()) >= 1: dock()',
    'import ctypes; ctypes.string_at(0)',
    'import os\nwhile 1: os.fork()',
    'import socket; socket.socket()',
    'open("/proc/self/mem", "wb")',
    'import os; os.kill(os.getppid(), 9)',
    'import os; os.symlink("/etc/passwd", "x")',
    'print("x" * 10**9)',
    '(' * 500 + ')' * 500,
    '[' * 150 + ']' * 150,
    '-' * 2000 + '1',
    'wait(' + '-' * 60 + '1)',
    'if prop("a","b")>=1:\n' + ''.join(' ' * i + 'if prop("a","b")>=1:\n' for i in range(1, 6)) + ' ' * 7 + 'dock()',
    'dock()\n' * 65,
    'wait(1)\n' * 990,
    'wait(' + '9' * 5000 + ')',
    'wait(' + '9' * 400 + ')',
    'dock()\x00',
    'dock()\udcff',
    'navigate("\udcff")',
    '\u202edock()',
    'navigate("kit\u200bchen")',
    'navigate("\\u202e")',
    'dосk()',
    'ｅｘｅｃ("1")',
    'dock();;',
    'dock(',
    '\tdock()\n  dock()',
    'navigate("\\d")',
    'dock()' + ' ' * 9000,
]


@pytest.mark.parametrize('text', ESCAPES)
def test_everything_outside_the_language_is_refused_in_words(text: str) -> None:
    before_s = time.monotonic()
    with pytest.raises(BadRequestError, match='program'):
        compile_program(text, HOUSEHOLD_SKILLS)
    assert time.monotonic() - before_s < 2.0


def test_wide_letters_are_folded_to_the_skill_they_spell() -> None:
    assert compile_program('ｄｏｃｋ()', HOUSEHOLD_SKILLS).steps[0].skill == 'dock'
    assert compile_program("navigate('ｓｉｎｋ')", HOUSEHOLD_SKILLS).steps[0].arguments == {'target': 'sink'}


def test_if_without_a_step_leaves_no_branch() -> None:
    text = 'if prop("cup", "fill_level") >= 1:\n  pass\nif prop("cup", "fill_level") <= 0:\n  dock()'
    plan = compile_program(text, HOUSEHOLD_SKILLS)
    assert len(plan.branches) == 1
    assert plan.steps[0].branch_id == 1


def test_refusal_names_the_line() -> None:
    with pytest.raises(BadRequestError, match='line 2'):
        compile_program('dock()\nimport os', HOUSEHOLD_SKILLS)


@given(st.text(max_size=200))
def test_any_text_is_a_plan_or_a_refusal(text: str) -> None:
    try:
        plan = compile_program(text, HOUSEHOLD_SKILLS)
    except BadRequestError:
        return
    assert plan.steps


FRAGMENTS = st.sampled_from(
    [
        'dock()',
        "navigate('sink')",
        'if prop("cup", "fill_level") >= 1:',
        'else:',
        'for x in [1, 2]:',
        ' ',
        '\n',
        'wait(x)',
    ]
)


@given(st.lists(FRAGMENTS, max_size=14))
def test_any_program_that_compiles_reads_back_from_json(fragments: list[str]) -> None:
    try:
        plan = compile_program(''.join(fragments), HOUSEHOLD_SKILLS)
    except BadRequestError:
        return
    assert plan_from_json(plan_to_json(plan), PlanSource.PROGRAM) == plan
