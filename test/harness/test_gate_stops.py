"""Stopping, making safe, the latch, and driving by velocity."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gate_steps import DOCK, KITCHEN, blocked, command, plan_of, run, soon
import pytest

from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.base import Decision
from kv_agent_ros.harness.estop import open_estop_latch
from kv_agent_ros.harness.fake import ROBOT_ID, Lab
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.robot.base import Step, Velocity
from kv_agent_ros.robot.fake import FakeRobot


def test_make_safe_ends_the_running_step_and_docks(lab: Lab) -> None:
    harness, robot, _, finish = blocked(lab)
    lab.see_robot(lab.state())
    result = harness.make_safe(ROBOT_ID, 'task1', soon())
    assert finish().outcome is Outcome.CANCELED
    assert robot.executed[-1] == DOCK
    assert result.outcome is Outcome.POSTCONDITION_FAILURE


def test_make_safe_brings_the_robot_to_the_dock(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    assert run(harness, plan_of(KITCHEN)).is_success
    assert harness.make_safe(ROBOT_ID, 'task1', soon()).is_success
    assert lab.state().is_docked


def test_make_safe_goes_through_the_same_checks(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    assert run(harness, plan_of(KITCHEN)).is_success
    lab.see_person((6.0, 2.0))
    result = harness.make_safe(ROBOT_ID, 'task1', soon())
    assert 'person.near' in result.message
    assert robot.executed == [KITCHEN]
    assert robot.num_stops == 1


def test_estop_is_latched_over_a_restart_until_a_person_resets_it(lab: Lab) -> None:
    robot = lab.obedient_robot()
    plan = plan_of(KITCHEN)
    lab.harness(robot).estop(ROBOT_ID, 'red button')
    lab.latch = open_estop_latch(lab.directory / 'estop.json', (ROBOT_ID,))
    harness = lab.harness(robot)
    assert harness.check_plan(ROBOT_ID, plan).rule_ids == ('estop.latched',)
    assert harness.execute(command(plan, 0), soon()).outcome is Outcome.EMERGENCY_STOPPED
    assert harness.make_safe(ROBOT_ID, 'task1', soon()).outcome is Outcome.EMERGENCY_STOPPED
    assert harness.reset_estop(ROBOT_ID, '').outcome is Outcome.BAD_REQUEST
    assert harness.reset_estop(ROBOT_ID, 'alice').is_success
    assert robot.executed == []
    assert run(harness, plan).is_success


def test_reset_does_not_bring_back_plans_from_before(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = plan_of(KITCHEN)
    harness.check_plan(ROBOT_ID, plan)
    harness.estop(ROBOT_ID, 'red button')
    harness.reset_estop(ROBOT_ID, 'alice')
    assert 'plan.expired' in harness.execute(command(plan, 0), soon()).message


def test_unreadable_latch_file_latches_every_robot(tmp_path: Path) -> None:
    path = tmp_path / 'estop.json'
    for content in (b'{', b'[]', b'{"robot1": 1}', b'\xff'):
        path.write_bytes(content)
        assert open_estop_latch(path, (ROBOT_ID,)).is_latched(ROBOT_ID)


def test_latch_that_cannot_be_saved_still_stops(lab: Lab) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, 'No space left on device')

    lab.latch = open_estop_latch(lab.directory / 'other.json', (ROBOT_ID,), write=full)
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    assert not harness.estop(ROBOT_ID, 'red button').is_success
    assert robot.num_stops > 0
    assert not harness.reset_estop(ROBOT_ID, 'alice').is_success
    assert harness.check_plan(ROBOT_ID, plan_of(KITCHEN)).rule_ids == ('estop.latched',)


def test_plans_and_stops_of_one_robot_are_not_those_of_another(lab: Lab) -> None:
    lab.see(replace(lab.state(), robot_id='robot2'), (), ())
    harness = AgentHarness(
        robots={ROBOT_ID: FakeRobot(ROBOT_ID), 'robot2': FakeRobot('robot2')},
        world=lab.world,
        policy=lab.policy,
        audit=lab.audit,
        latch=lab.latch,
        clock=lab.clock,
        observation_timeout_s=0.05,
    )
    plan = plan_of(KITCHEN)
    harness.check_plan(ROBOT_ID, plan)
    assert 'plan.expired' in harness.execute(replace(command(plan, 0), robot_id='robot2'), soon()).message
    harness.estop(ROBOT_ID, 'red button')
    assert harness.check_plan('robot2', plan).decision is Decision.ALLOW


def test_guarded_robot_is_a_robot_under_the_same_rules(lab: Lab) -> None:
    robot = lab.obedient_robot()
    guarded = lab.harness(robot).robot(ROBOT_ID)
    assert guarded is not None
    assert guarded.execute(Step(skill='fly'), soon()).outcome is Outcome.REJECTED_BY_GATE
    assert guarded.execute(KITCHEN, soon()).is_success
    assert robot.executed == [KITCHEN]


def test_raw_robot_is_no_public_attribute_of_the_harness(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    for holder in (harness, harness.robot(ROBOT_ID)):
        public = [value for name, value in vars(holder).items() if not name.startswith('_')]
        assert all(value is not robot for value in public)


def test_driving_is_bounded_and_ends_with_the_estop(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    guarded = harness.robot(ROBOT_ID)
    assert guarded is not None
    guarded.observe_obstacle(5.0)
    guarded.drive(Velocity(linear_mps=float('nan')))
    guarded.drive(Velocity(linear_mps=99.0))
    harness.estop(ROBOT_ID, 'red button')
    harness.tick()
    assert all(0.0 <= velocity.linear_mps <= 0.6 for velocity in robot.velocities)
    assert robot.velocities[-1] == Velocity()


class SlowWheels(FakeRobot):
    """A robot that is stopped from elsewhere while a velocity is on its way to it."""

    press: Callable[[], object]

    def drive(self, velocity: Velocity) -> None:
        press, self.press = self.press, lambda: None
        press()
        super().drive(velocity)


@pytest.mark.parametrize('button', ['estop', 'stop'])
def test_velocity_on_its_way_when_the_robot_is_stopped_does_not_stand(lab: Lab, button: str) -> None:
    robot, now_s = SlowWheels(ROBOT_ID), [0.0]
    harness = AgentHarness(
        robots={ROBOT_ID: robot},
        world=lab.world,
        policy=lab.policy,
        audit=lab.audit,
        latch=lab.latch,
        clock=lab.clock,
        steady_clock=lambda: now_s[0],
    )
    guarded = harness.robot(ROBOT_ID)
    assert guarded is not None
    presses: dict[str, Callable[[], object]] = {
        'estop': lambda: harness.estop(ROBOT_ID, 'red button'),
        'stop': guarded.stop,
    }
    robot.press = presses[button]
    guarded.observe_obstacle(5.0)
    now_s[0] += 0.1
    guarded.drive(Velocity(linear_mps=0.5))
    assert [velocity.linear_mps for velocity in robot.velocities] == [pytest.approx(0.1), 0.0]
