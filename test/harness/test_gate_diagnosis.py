"""Why a step failed, and what follows from it."""

from dataclasses import replace

from gate_steps import KITCHEN, PICK, command, plan_of, soon

from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.base import Recovery
from kv_agent_ros.harness.fake import ROBOT_ID, Lab
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.robot.base import Pose, Step, StepResult
from kv_agent_ros.robot.fake import FakeRobot


def failed(lab: Lab, result: StepResult, step: Step = KITCHEN) -> AgentHarness:
    harness = lab.harness(FakeRobot(ROBOT_ID, results={step.skill: [result] * 9}))
    plan = plan_of(step)
    harness.check_plan(ROBOT_ID, plan)
    harness.execute(command(plan, 0), soon())
    return harness


def test_blocked_way_is_retried_twice_then_planned_again(lab: Lab) -> None:
    harness = failed(lab, StepResult(outcome=Outcome.EXECUTION_FAILURE, message='no progress'))
    plan = plan_of(KITCHEN)
    recoveries = []
    for _ in range(3):
        diagnosis = harness.diagnose(ROBOT_ID, 'task1')
        assert diagnosis.root_cause == 'path_blocked'
        recoveries.append(diagnosis.recovery)
        harness.execute(command(plan, 0), soon())
    assert recoveries == [Recovery.RETRY, Recovery.RETRY, Recovery.REPLAN]


def test_empty_gripper_after_a_pick_is_a_slip(lab: Lab) -> None:
    lab.see_robot(replace(lab.state(), pose=Pose(x_m=1.0, y_m=3.0), room='kitchen', is_docked=False))
    harness = failed(lab, StepResult(outcome=Outcome.EXECUTION_FAILURE), PICK)
    diagnosis = harness.diagnose(ROBOT_ID, 'task1')
    assert diagnosis.root_cause == 'slip'
    assert any('holding nothing' in line for line in diagnosis.evidence)


def test_thing_that_is_not_there_is_missing(lab: Lab) -> None:
    bowl = Step(skill='find', arguments={'target': 'bowl'})
    harness = failed(lab, StepResult(outcome=Outcome.EXECUTION_FAILURE), bowl)
    assert harness.diagnose(ROBOT_ID, 'task1').root_cause == 'object_missing'


def test_refusals_stops_and_cancels_have_their_own_causes(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = plan_of(KITCHEN)
    harness.check_plan(ROBOT_ID, plan)
    lab.now_s += 5.0
    harness.execute(command(plan, 0, 'task2'), soon())
    assert harness.diagnose(ROBOT_ID, 'task2').root_cause == 'world_stale'
    harness.estop(ROBOT_ID, 'red button')
    harness.execute(command(plan, 0, 'task3'), soon())
    assert harness.diagnose(ROBOT_ID, 'task3').root_cause == 'estop'
    assert harness.diagnose(ROBOT_ID, 'task4').root_cause == 'no_failure'


def test_rejected_plan_is_a_gate_refusal_with_its_reason(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    harness.check_plan(ROBOT_ID, plan_of(Step(skill='fly')))
    diagnosis = harness.diagnose(ROBOT_ID, 'task1')
    assert diagnosis.root_cause == 'gate_refusal'
    assert diagnosis.recovery is Recovery.REPLAN


def test_audit_head_moves_with_every_decision(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    before = harness.audit_head(ROBOT_ID)
    harness.check_plan(ROBOT_ID, plan_of(KITCHEN))
    assert harness.audit_head(ROBOT_ID) != before
