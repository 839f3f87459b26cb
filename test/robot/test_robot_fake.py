import threading

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome
from kv_agent_ros.robot.base import Robot, Step, StepResult, Velocity
from kv_agent_ros.robot.fake import FakeRobot, gripper_and_dock

PICK = Step(skill='pick', arguments={'target': 'cup1'})


def test_scripted_results_are_used_in_order_and_then_every_step_succeeds() -> None:
    slip = StepResult(outcome=Outcome.EXECUTION_FAILURE, message='slip')
    robot: Robot = FakeRobot(results={'pick': [slip]})

    assert robot.execute(PICK, Deadline(1.0)) == slip
    assert robot.execute(PICK, Deadline(1.0)).is_success


def test_a_failed_step_has_no_effect_and_a_successful_one_has() -> None:
    slip = StepResult(outcome=Outcome.EXECUTION_FAILURE)
    robot = FakeRobot(results={'pick': [slip]}, effect=gripper_and_dock)

    robot.execute(PICK, Deadline(1.0))
    assert robot.state().holding == ''
    robot.execute(PICK, Deadline(1.0))
    assert robot.state().holding == 'cup1'


def test_a_blocking_skill_ends_canceled_when_its_deadline_is_cancelled() -> None:
    robot = FakeRobot(blocking_skills=['navigate'])
    deadline = Deadline(30.0)
    results: list[StepResult] = []
    worker = threading.Thread(target=lambda: results.append(robot.execute(Step(skill='navigate'), deadline)))
    worker.start()
    assert robot.is_blocking.wait(5.0)

    deadline.cancel()
    worker.join(5.0)

    assert [result.outcome for result in results] == [Outcome.CANCELED]


def test_a_blocking_skill_times_out() -> None:
    robot = FakeRobot(blocking_skills=['wait'])
    assert robot.execute(Step(skill='wait'), Deadline(0.01)).outcome is Outcome.TIMEOUT


def test_it_remembers_velocities_and_stops() -> None:
    robot = FakeRobot()
    robot.drive(Velocity(linear_mps=0.2))
    assert robot.state().is_moving
    robot.stop()
    assert not robot.state().is_moving
    assert (robot.velocities, robot.num_stops) == ([Velocity(linear_mps=0.2)], 1)
