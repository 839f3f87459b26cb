"""A walk through a plan: no step is done while nobody knows whether its condition holds."""

from collections.abc import Callable
from dataclasses import replace

from kv_agent_ros.agent.fake import FakeHome
from kv_agent_ros.agent.task import StepStatus, Task
from kv_agent_ros.agent.walk import CONDITION_MAX_AGE_S, PlanWalk
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.base import Decision
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Branch, Condition, Operator, Plan
from kv_agent_ros.world.fake import example_cup
from kv_agent_ros.world.state import Observation

CUP_IS_FULL = Condition(target='cup', property='fill_level', operator=Operator.AT_LEAST, value=0.9)
GO_WHEN_FULL = Plan(
    steps=(Step(skill='navigate', arguments={'target': 'kitchen'}, branch_id=1, arm=True),),
    branches=(Branch(branch_id=1, condition=CUP_IS_FULL),),
)


def seen_cup(home: FakeHome, age_s: float) -> None:
    """The cup was looked at closely so long ago; the robot is observed now."""
    cup = example_cup('cup_1', 1.0, home.now_s)
    home.world.apply(Observation(robot=replace(home.state(), stamp_s=home.now_s), stamp_s=home.now_s, objects=(cup,)))
    home.now_s += age_s
    home.observe()


def walk_of(home: FakeHome) -> PlanWalk:
    assert home.gate.check_plan(home.robot_id, GO_WHEN_FULL).decision is Decision.ALLOW
    task = Task(task_id='t1', robot_id=home.robot_id, instruction='go')
    return PlanWalk(
        task=task,
        plan=GO_WHEN_FULL,
        gate=home.gate,
        world=home.world,
        clock=home.clock,
        on_step=lambda index: None,
    )


def test_a_repeated_step_waits_for_its_condition_too(make_home: Callable[..., FakeHome]) -> None:
    home = make_home(example_cup('cup_1', 1.0, 0.0))
    seen_cup(home, 2 * CONDITION_MAX_AGE_S)
    walk = walk_of(home)
    first = walk.advance(Deadline(10.0))
    again = walk.repeat(Deadline(10.0))
    assert first is not None
    assert [first.outcome, again.outcome] == [Outcome.PRECONDITION_FAILURE, Outcome.PRECONDITION_FAILURE]
    assert [first.attempt, again.attempt] == [1, 2]
    assert home.executed() == []


def test_a_repeated_step_is_done_once_its_condition_was_measured(make_home: Callable[..., FakeHome]) -> None:
    home = make_home(example_cup('cup_1', 1.0, 0.0))
    seen_cup(home, 2 * CONDITION_MAX_AGE_S)
    walk = walk_of(home)
    walk.advance(Deadline(10.0))
    seen_cup(home, 1.0)
    assert walk.repeat(Deadline(10.0)).status is StepStatus.SUCCEEDED
    assert home.executed() == ['navigate']
