"""What the gate lets through and what it refuses: one rule, one test, seen from outside."""

from dataclasses import replace

from gate_steps import (
    COUNTER,
    CUP_IS_FULL,
    DOCK,
    INSPECT,
    KITCHEN,
    PICK,
    POUR,
    POUR_HALF_WHEN_FULL,
    command,
    in_background,
    in_branch,
    plan_of,
    run,
    soon,
)
import pytest

from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.audit_verify import verify
from kv_agent_ros.harness.base import Decision
from kv_agent_ros.harness.fake import ROBOT_ID, Lab
from kv_agent_ros.robot.base import Pose, Step, StepResult
from kv_agent_ros.robot.fake import FakeRobot
from kv_agent_ros.robot.plan import Branch, Plan
from kv_agent_ros.world.fake import example_cup
from kv_agent_ros.world.state import Zone


def test_allowed_plan_is_done_step_by_step_with_evidence(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    verdict = harness.check_plan(ROBOT_ID, POUR_HALF_WHEN_FULL)
    assert verdict.decision is Decision.ALLOW, verdict.reason
    for index in range(len(POUR_HALF_WHEN_FULL.steps)):
        result = harness.execute(command(POUR_HALF_WHEN_FULL, index), soon())
        assert result.is_success, (index, result.message)
        assert result.message
    assert lab.world.snapshot().find_objects('cup')[0].properties['fill_level'] == 0.5
    assert lab.state().is_docked
    lab.audit.close()
    assert verify(lab.directory / 'audit', lab.key).is_ok


@pytest.mark.parametrize(
    ('step', 'rule_id'),
    [
        (Step(skill='fly'), 'skill.unknown'),
        (Step(skill='__class__'), 'skill.unknown'),
        (Step(skill='navigate'), 'argument.schema'),
        (Step(skill='navigate', arguments={'target': 'kitchen', 'nose': 'red'}), 'argument.schema'),
        (Step(skill='navigate', arguments={'target': 1.0}), 'argument.schema'),
        (Step(skill='navigate', arguments={'target': 'kitchen', 'speed_mps': '0.5'}), 'argument.schema'),
        (Step(skill='navigate', arguments={'target': 'kitchen', 'speed_mps': True}), 'argument.schema'),
        (Step(skill='navigate', arguments={'target': 'kitchen', 'speed_mps': 99.0}), 'argument.range'),
        (Step(skill='navigate', arguments={'target': 'kitchen', 'speed_mps': 0.9}), 'argument.range'),
        (Step(skill='navigate', arguments={'target': 'kitchen', 'speed_mps': -0.5}), 'argument.range'),
        (Step(skill='navigate', arguments={'target': 'kitchen', 'speed_mps': float('nan')}), 'argument.range'),
        (Step(skill='wait', arguments={'duration_s': float('inf')}), 'argument.range'),
        (Step(skill='wait', arguments={'duration_s': 1e12}), 'argument.range'),
        (Step(skill='navigate', arguments={'target': 'kitchn'}), 'name.unknown'),
        (Step(skill='pick', arguments={'target': 'unicorn'}), 'name.unknown'),
        (Step(skill='open', arguments={'target': 'kitchen'}), 'name.unknown'),
        (PICK, 'precondition'),
    ],
)
def test_bad_step_is_refused_by_its_rule_and_nothing_moves(lab: Lab, step: Step, rule_id: str) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    plan = plan_of(step)
    verdict = harness.check_plan(ROBOT_ID, plan)
    assert verdict.decision is Decision.REJECT
    assert verdict.rule_ids == (rule_id,)
    assert harness.execute(command(plan, 0), soon()).outcome is Outcome.REJECTED_BY_GATE
    assert robot.executed == []


def test_unknown_name_comes_with_its_nearest_candidates(lab: Lab) -> None:
    plan = plan_of(Step(skill='navigate', arguments={'target': 'kitchn'}))
    assert 'kitchen' in lab.harness(lab.obedient_robot()).check_plan(ROBOT_ID, plan).reason


def test_skill_outside_the_allow_list_is_denied_by_default(lab: Lab) -> None:
    allowed = tuple(name for name in lab.policy.skills.allowed if name != 'pick')
    lab.policy = replace(lab.policy, skills=replace(lab.policy.skills, allowed=allowed))
    harness = lab.harness(lab.obedient_robot())
    assert harness.check_plan(ROBOT_ID, plan_of(COUNTER, PICK)).rule_ids == ('skill.unknown',)
    guarded = harness.robot(ROBOT_ID)
    assert guarded is not None
    assert 'pick' not in {skill.name for skill in guarded.skills()}


def test_keep_out_room_is_not_entered(lab: Lab) -> None:
    lab.policy = replace(lab.policy, keep_out=replace(lab.policy.keep_out, rooms=('kitchen',)))
    verdict = lab.harness(lab.obedient_robot()).check_plan(ROBOT_ID, plan_of(KITCHEN))
    assert verdict.rule_ids == ('zone.keep_out',)


def test_keep_out_room_that_the_map_lacks_refuses_everything(lab: Lab) -> None:
    lab.policy = replace(lab.policy, keep_out=replace(lab.policy.keep_out, rooms=('kichen',)))
    verdict = lab.harness(lab.obedient_robot()).check_plan(ROBOT_ID, plan_of(KITCHEN))
    assert 'kichen' in verdict.reason


def test_way_through_a_zone_of_the_map_is_refused(lab: Lab) -> None:
    hole = Zone(name='hole', outline=((5.0, 1.5), (5.5, 1.5), (5.5, 2.5), (5.0, 2.5)))
    world = lab.world.snapshot()
    lab.world = lab.world.__class__(replace(world.map, zones=(hole,)))
    lab.see(world.robots[0], world.objects, ())
    assert lab.harness(lab.obedient_robot()).check_plan(ROBOT_ID, plan_of(KITCHEN)).rule_ids == ('zone.keep_out',)


def test_robot_may_leave_a_zone_it_stands_in_but_not_work_there(lab: Lab) -> None:
    lab.see_robot(replace(lab.state(), pose=Pose(x_m=8.5, y_m=3.5), is_docked=False))
    harness = lab.harness(lab.obedient_robot())
    assert harness.check_step(ROBOT_ID, DOCK).decision is Decision.ALLOW
    wait = Step(skill='wait', arguments={'duration_s': 1.0})
    assert harness.check_step(ROBOT_ID, wait).rule_ids == ('zone.keep_out',)


def test_person_on_the_way_is_waited_for_and_one_far_off_is_not(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    lab.see_person((6.0, 2.1))
    assert harness.check_step(ROBOT_ID, KITCHEN).rule_ids == ('person.near',)
    lab.see_person((6.0, 3.9))
    assert harness.check_step(ROBOT_ID, KITCHEN).decision is Decision.ALLOW


def test_step_waits_for_a_person_to_go_and_is_then_done(lab: Lab) -> None:
    lab.policy = replace(lab.policy, patience_s=5.0)
    robot = lab.obedient_robot()
    harness, plan = lab.harness(robot), plan_of(KITCHEN)
    harness.check_plan(ROBOT_ID, plan)
    lab.see_person((6.0, 2.1))
    finish = in_background(lambda: harness.execute(command(plan, 0), soon()))
    lab.see_person((6.0, 3.9))
    assert finish().is_success
    assert robot.executed == [KITCHEN]


def test_canceled_step_is_not_begun(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness, plan, deadline = lab.harness(robot), plan_of(KITCHEN), soon()
    harness.check_plan(ROBOT_ID, plan)
    deadline.cancel()
    assert harness.execute(command(plan, 0), deadline).outcome is Outcome.CANCELED
    assert robot.executed == []


def test_person_seen_long_ago_does_not_hold_the_robot(lab: Lab) -> None:
    lab.see_person((6.0, 2.1))
    lab.now_s += 31.0
    lab.see_robot(lab.state())
    assert lab.harness(lab.obedient_robot()).check_step(ROBOT_ID, KITCHEN).decision is Decision.ALLOW


def test_a_battery_that_could_not_be_measured_allows_no_way_out(lab: Lab) -> None:
    lab.see_robot(replace(lab.state(), battery=float('nan'), is_docked=False))
    assert lab.harness(lab.obedient_robot()).check_step(ROBOT_ID, KITCHEN).rule_ids == ('battery.reserve',)


def test_low_battery_allows_only_the_dock(lab: Lab) -> None:
    lab.see_robot(replace(lab.state(), battery=0.11, is_docked=False))
    harness = lab.harness(lab.obedient_robot())
    assert harness.check_step(ROBOT_ID, KITCHEN).rule_ids == ('battery.reserve',)
    assert harness.check_step(ROBOT_ID, DOCK).decision is Decision.ALLOW


def test_closing_the_only_way_back_to_the_dock_is_refused(lab: Lab) -> None:
    lab.see_robot(replace(lab.state(), pose=Pose(x_m=3.5, y_m=2.0), room='kitchen', is_docked=False))
    close = Step(skill='close', arguments={'target': 'kitchen_door'})
    assert lab.harness(lab.obedient_robot()).check_step(ROBOT_ID, close).rule_ids == ('battery.reserve',)


def test_two_cups_need_a_person_to_say_which(lab: Lab) -> None:
    lab.see_objects(example_cup('cup_2', 0.0, 0.0))
    verdict = lab.harness(lab.obedient_robot()).check_plan(ROBOT_ID, plan_of(COUNTER, PICK))
    assert verdict.decision is Decision.DEFER
    assert verdict.rule_ids == ('object.ambiguous',)


def test_pouring_onto_the_table_is_refused(lab: Lab) -> None:
    table = Step(skill='pour', arguments={'target': 'table', 'fraction': 0.5})
    assert 'pour.target' in lab.harness(lab.obedient_robot()).check_step(ROBOT_ID, table).rule_ids


def test_pouring_over_an_electrical_thing_in_the_sink_is_refused(lab: Lab) -> None:
    lab.see_objects(replace(example_cup('phone_1', 0.0, 0.0), category='phone', location='sink'))
    assert 'pour.target' in lab.harness(lab.obedient_robot()).check_step(ROBOT_ID, POUR).rule_ids


def test_forbidden_things_are_never_touched(lab: Lab) -> None:
    lab.see_objects(replace(example_cup('gun_1', 0.0, 0.0), category='firearm'))
    verdict = lab.harness(lab.obedient_robot()).check_plan(
        ROBOT_ID, plan_of(COUNTER, Step(skill='pick', arguments={'target': 'gun_1'}))
    )
    assert verdict.rule_ids == ('category.forbidden',)


def test_too_many_steps_and_too_long_a_plan_break_the_budget(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    wait = Step(skill='wait', arguments={'duration_s': 60.0})
    assert harness.check_plan(ROBOT_ID, plan_of(*[wait] * 31)).rule_ids == ('plan.budget',)
    assert harness.check_plan(ROBOT_ID, plan_of(*[wait] * 41)).rule_ids == ('plan.budget',)
    assert harness.check_plan(ROBOT_ID, plan_of()).rule_ids == ('plan.budget',)


def test_both_arms_of_a_branch_are_judged(lab: Lab) -> None:
    plan = Plan(
        steps=(in_branch(DOCK, 1, True), in_branch(PICK, 1, False)),
        branches=(Branch(branch_id=1, condition=CUP_IS_FULL),),
    )
    verdict = lab.harness(lab.obedient_robot()).check_plan(ROBOT_ID, plan)
    assert [finding.step_index for finding in verdict.findings] == [1]


def test_step_of_an_arm_that_the_world_denies_is_refused(lab: Lab) -> None:
    lab.see_objects(example_cup('cup_1', 0.3, 0.0))
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    assert harness.check_plan(ROBOT_ID, POUR_HALF_WHEN_FULL).decision is Decision.ALLOW
    assert harness.execute(command(POUR_HALF_WHEN_FULL, 0), soon()).is_success
    result = harness.execute(command(POUR_HALF_WHEN_FULL, 2), soon())
    assert result.outcome is Outcome.REJECTED_BY_GATE
    assert 'branch.condition' in result.message
    assert robot.executed == [COUNTER]


@pytest.mark.parametrize(('age_s', 'is_refused'), [(110.0, False), (130.0, True)])
def test_branch_is_not_decided_on_a_measurement_that_is_too_old(lab: Lab, age_s: float, is_refused: bool) -> None:
    wait = in_branch(Step(skill='wait', arguments={'duration_s': 1.0}), 1, True)
    plan = Plan(steps=(wait,), branches=(Branch(branch_id=1, condition=CUP_IS_FULL),))
    harness = lab.harness(lab.obedient_robot())
    assert harness.check_plan(ROBOT_ID, plan).decision is Decision.ALLOW
    lab.now_s += age_s
    lab.see_robot(lab.state())
    result = harness.execute(command(plan, 0), soon())
    assert ('branch.condition' in result.message) is is_refused, result.message


def test_stale_world_refuses_the_act(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    plan = plan_of(KITCHEN)
    harness.check_plan(ROBOT_ID, plan)
    lab.now_s += 5.0
    result = harness.execute(command(plan, 0), soon())
    assert result.outcome is Outcome.REJECTED_BY_GATE
    assert 'world.stale' in result.message
    assert robot.executed == []


def test_observation_from_the_future_is_not_fresh(lab: Lab) -> None:
    lab.now_s -= 60.0
    assert lab.harness(lab.obedient_robot()).check_step(ROBOT_ID, KITCHEN).rule_ids == ('world.stale',)


def test_plan_expires_and_is_renewed_by_each_step(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = plan_of(KITCHEN, DOCK)
    harness.check_plan(ROBOT_ID, plan)
    lab.now_s += 200.0
    lab.see_robot(lab.state())
    assert harness.execute(command(plan, 0), soon()).is_success
    lab.now_s += 200.0
    lab.see_robot(lab.state())
    assert harness.execute(command(plan, 1), soon()).is_success
    lab.now_s += 301.0
    lab.see_robot(lab.state())
    assert 'plan.expired' in harness.execute(command(plan, 1), soon()).message


def test_unknown_plan_and_step_and_robot_are_refused(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = lab.harness(robot)
    plan = plan_of(KITCHEN)
    assert 'plan.expired' in harness.execute(command(plan, 0), soon()).message
    harness.check_plan(ROBOT_ID, plan)
    assert 'plan.expired' in harness.execute(command(plan, 1), soon()).message
    assert 'plan.expired' in harness.execute(command(plan, -1), soon()).message
    elsewhere = replace(command(plan, 0), robot_id='robot2')
    assert harness.execute(elsewhere, soon()).outcome is Outcome.ROBOT_NOT_FOUND
    assert harness.check_plan('robot2', plan).rule_ids == ('robot.unknown',)
    assert robot.executed == []


def test_earlier_step_is_not_done_after_a_later_one(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = plan_of(KITCHEN, DOCK)
    assert run(harness, plan, 1).is_success
    assert 'step.order' in harness.execute(command(plan, 0), soon()).message


def test_step_that_succeeded_is_not_done_again_and_one_that_failed_is(lab: Lab) -> None:
    robot = FakeRobot(
        ROBOT_ID, results={'navigate': [StepResult(outcome=Outcome.EXECUTION_FAILURE)]}, effect=lab.predicted
    )
    harness, plan = lab.harness(robot), plan_of(KITCHEN)
    assert not run(harness, plan).is_success
    assert harness.execute(command(plan, 0), soon()).is_success
    assert 'step.order' in harness.execute(command(plan, 0), soon()).message


def test_look_that_succeeded_may_be_taken_again(lab: Lab) -> None:
    harness, plan = lab.harness(lab.obedient_robot()), plan_of(COUNTER, INSPECT)
    assert run(harness, plan).is_success
    assert harness.execute(command(plan, 1), soon()).is_success
    assert harness.execute(command(plan, 1), soon()).is_success
