"""The whole agent over the real harness and world model: the report's own task, its two arms, and what goes wrong."""

from collections.abc import Callable
import json
import threading

import pytest

from kv_agent_ros.agent.fake import FakeHome
from kv_agent_ros.agent.task import StepStatus, Task, TaskPhase, TaskProgress, TaskResult
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.inference.scripted import ScriptedBackend, answers_in_order
from kv_agent_ros.inference.unavailable import UnavailableBackend
from kv_agent_ros.memory.base import SHARED, MemoryKind, MemoryRecord
from kv_agent_ros.robot.base import StepResult
from kv_agent_ros.robot.plan import PlanSource
from kv_agent_ros.world.fake import example_cup

CHINESE = '去厨房检查水杯是否倒满，如果满了就倒掉一半，然后返回充电座。'
ENGLISH = 'Go to the kitchen, check whether the cup is full, if it is pour out half, then return to the charging dock.'
FULL_ARM = ['navigate', 'find', 'inspect', 'pick', 'navigate', 'pour', 'navigate', 'place', 'dock']
LOOK_ONLY = ['navigate', 'find', 'inspect', 'dock']
GOOD_PLAN = {
    'plan': [
        {'skill': 'navigate', 'target': 'kitchen'},
        {'skill': 'inspect', 'target': 'cup'},
        {'skill': 'dock'},
    ]
}
MakeHome = Callable[..., FakeHome]


def run(home: FakeHome, instruction: str, **options: object) -> TaskResult:
    backend = options.get('backend', UnavailableBackend())
    return home.agent(backend).run(  # type: ignore[arg-type]
        Task(task_id='t1', robot_id=home.robot_id, instruction=instruction), Deadline(30.0)
    )


@pytest.mark.parametrize('instruction', [CHINESE, ENGLISH])
def test_a_full_cup_is_poured_out_by_half_put_back_and_the_robot_docks(make_home: MakeHome, instruction: str) -> None:
    home = make_home(example_cup('cup_1', 1.0, 0.0))
    result = run(home, instruction)
    assert result.outcome is Outcome.SUCCESS, result.message
    assert home.executed() == FULL_ARM
    assert home.thing('cup_1').properties['fill_level'] == pytest.approx(0.5)
    assert home.thing('cup_1').location == 'kitchen_counter'
    assert home.state().is_docked


@pytest.mark.parametrize('instruction', [CHINESE, ENGLISH])
@pytest.mark.parametrize('level', [0.0, 0.5, 0.85])
def test_a_cup_that_is_not_full_is_only_looked_at(make_home: MakeHome, instruction: str, level: float) -> None:
    home = make_home(example_cup('cup_1', level, 0.0))
    result = run(home, instruction)
    assert result.outcome is Outcome.SUCCESS, result.message
    assert home.executed() == LOOK_ONLY
    assert home.thing('cup_1').properties['fill_level'] == level
    skipped = [record.step.skill for record in result.steps if record.status is StepStatus.SKIPPED]
    assert skipped == ['pick', 'navigate', 'pour', 'navigate', 'place']


def test_without_a_cup_the_task_fails_clearly_and_the_robot_goes_to_its_dock(make_home: MakeHome) -> None:
    home = make_home()
    result = run(home, CHINESE)
    assert result.outcome is Outcome.POSTCONDITION_FAILURE
    assert 'cup' in result.message and 'dock' in result.message
    assert home.executed()[-1] == 'dock' and home.state().is_docked
    assert 'pour' not in home.executed()
