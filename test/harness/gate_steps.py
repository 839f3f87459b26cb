"""Steps, plans and calls that the tests of the gate share."""

from collections.abc import Callable
from dataclasses import replace
import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.harness.base import Decision, StepCommand
from kv_agent_ros.harness.fake import ROBOT_ID, Lab
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.robot.base import Step, StepResult
from kv_agent_ros.robot.fake import FakeRobot
from kv_agent_ros.robot.plan import Branch, Condition, Operator, Plan

KITCHEN = Step(skill='navigate', arguments={'target': 'kitchen'})
COUNTER = Step(skill='navigate', arguments={'target': 'kitchen_counter'})
SINK = Step(skill='navigate', arguments={'target': 'sink'})
INSPECT = Step(skill='inspect', arguments={'target': 'cup'})
PICK = Step(skill='pick', arguments={'target': 'cup'})
POUR = Step(skill='pour', arguments={'target': 'sink', 'fraction': 0.5})
DOCK = Step(skill='dock')


def in_branch(step: Step, branch_id: int, arm: bool) -> Step:
    return replace(step, branch_id=branch_id, arm=arm)


CUP_IS_FULL = Condition(target='cup', property='fill_level', operator=Operator.AT_LEAST, value=0.9)
POUR_HALF_WHEN_FULL = Plan(
    steps=(
        COUNTER,
        INSPECT,
        in_branch(PICK, 1, True),
        in_branch(SINK, 1, True),
        in_branch(POUR, 1, True),
        in_branch(COUNTER, 1, True),
        in_branch(Step(skill='place', arguments={'target': 'kitchen_counter'}), 1, True),
        DOCK,
    ),
    branches=(Branch(branch_id=1, condition=CUP_IS_FULL),),
)


def plan_of(*steps: Step) -> Plan:
    return Plan(steps=steps)


def command(plan: Plan, step_index: int, task_id: str = 'task1') -> StepCommand:
    return StepCommand(robot_id=ROBOT_ID, task_id=task_id, plan_id=plan.plan_id, step_index=step_index)


def soon() -> Deadline:
    return Deadline(10.0)


def run(harness: AgentHarness, plan: Plan, step_index: int = 0) -> StepResult:
    assert harness.check_plan(ROBOT_ID, plan).decision is Decision.ALLOW
    return harness.execute(command(plan, step_index), soon())


def in_background(work: Callable[[], StepResult]) -> Callable[[], StepResult]:
    """Start the work; the returned call waits for its result, 5 s at most."""
    results: list[StepResult] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def finish() -> StepResult:
        thread.join(timeout=5.0)
        assert results, 'the step did not end'
        return results[0]

    return finish


def blocked(lab: Lab) -> tuple[AgentHarness, FakeRobot, Deadline, Callable[[], StepResult]]:
    robot = FakeRobot(ROBOT_ID, blocking_skills=('navigate',))
    harness, plan, deadline = lab.harness(robot), plan_of(KITCHEN), soon()
    harness.check_plan(ROBOT_ID, plan)
    finish = in_background(lambda: harness.execute(command(plan, 0), deadline))
    assert robot.is_blocking.wait(timeout=5.0)
    return harness, robot, deadline, finish
