"""The gate from outside: what it lets through, what it refuses, and what it does when anything breaks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
import threading

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import AuditError, Outcome, UnreachableError
from kv_agent_ros.harness.audit import Audit
from kv_agent_ros.harness.audit_key import Head
from kv_agent_ros.harness.audit_record import AuditKind, AuditRecord, Entry
from kv_agent_ros.harness.audit_verify import verify
from kv_agent_ros.harness.base import Decision, Finding, Recovery, StepCommand, StepContext
from kv_agent_ros.harness.estop import open_estop_latch
from kv_agent_ros.harness.fake import ROBOT_ID, Lab
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.robot.base import Pose, Step, StepResult, Velocity
from kv_agent_ros.robot.fake import FakeRobot
from kv_agent_ros.robot.plan import Branch, Condition, Operator, Plan
from kv_agent_ros.world.fake import example_cup
from kv_agent_ros.world.state import Zone

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


class MeddlingClock:
    """A clock that lets a second caller try the same step whenever it is read after the robot began to act."""

    def __init__(self, lab: Lab, robot: FakeRobot, plan: Plan) -> None:
        self.lab = lab
        self.robot = robot
        self.plan = plan
        self.harness: AgentHarness | None = None
        self.results: list[StepResult] = []

    def now_s(self) -> float:
        harness = self.harness
        if harness is not None and self.robot.executed:
            self.harness = None
            self.results.append(harness.execute(command(self.plan, 0, 'task2'), soon()))
            self.harness = harness
        return self.lab.now_s


def test_step_is_done_once_however_two_callers_meet(lab: Lab) -> None:
    robot, plan = lab.obedient_robot(), plan_of(KITCHEN)
    clock = MeddlingClock(lab, robot, plan)
    harness = AgentHarness(
        robots={ROBOT_ID: robot},
        world=lab.world,
        policy=lab.policy,
        audit=lab.audit,
        latch=lab.latch,
        clock=clock.now_s,
        observation_timeout_s=0.05,
    )
    clock.harness = harness
    assert run(harness, plan).is_success
    assert clock.results
    assert robot.executed == [KITCHEN]


def knife_plan(lab: Lab) -> Plan:
    lab.see_objects(replace(example_cup('knife_1', 0.0, 0.0), category='knife'))
    return plan_of(COUNTER, Step(skill='pick', arguments={'target': 'knife_1'}))


def test_deferred_plan_waits_for_a_person_and_then_runs(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = knife_plan(lab)
    assert harness.check_plan(ROBOT_ID, plan).rule_ids == ('approval.required',)
    assert harness.execute(command(plan, 0), soon()).outcome is Outcome.NEEDS_APPROVAL
    assert [ticket.plan for ticket in harness.pending(ROBOT_ID)] == [plan]
    assert harness.approve(ROBOT_ID, plan.plan_id, 'alice', 'she is cooking').is_success
    assert harness.execute(command(plan, 0), soon()).is_success
    assert harness.execute(command(plan, 1), soon()).is_success
    approvals = lab.audit.select(lambda record: record.entry.kind is AuditKind.APPROVAL, 9)
    assert approvals[0].text('operator') == 'alice'


def test_denied_plan_is_void(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = knife_plan(lab)
    harness.check_plan(ROBOT_ID, plan)
    assert harness.deny(ROBOT_ID, plan.plan_id, 'alice', 'no').is_success
    assert 'plan.expired' in harness.execute(command(plan, 0), soon()).message
    assert not harness.approve(ROBOT_ID, plan.plan_id, 'alice', 'yes').is_success


def test_approval_needs_a_person_and_a_deferred_plan(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = knife_plan(lab)
    harness.check_plan(ROBOT_ID, plan)
    assert harness.approve(ROBOT_ID, plan.plan_id, ' ', 'x').outcome is Outcome.BAD_REQUEST
    rejected = plan_of(Step(skill='fly'))
    harness.check_plan(ROBOT_ID, rejected)
    assert harness.approve(ROBOT_ID, rejected.plan_id, 'alice', 'x').outcome is Outcome.BAD_REQUEST


def test_approval_does_not_cover_what_comes_up_later(lab: Lab) -> None:
    harness = lab.harness(lab.obedient_robot())
    plan = knife_plan(lab)
    harness.check_plan(ROBOT_ID, plan)
    harness.approve(ROBOT_ID, plan.plan_id, 'alice', 'yes')
    lab.see_person((5.0, 2.0))
    assert 'person.near' in harness.execute(command(plan, 0), soon()).message


class RaisingRule:
    """A rule with a bug."""

    rule_id = 'buggy'

    def check(self, context: StepContext) -> tuple[Finding, ...]:
        raise ZeroDivisionError('bug')


def test_exception_in_a_rule_rejects(lab: Lab) -> None:
    verdict = lab.harness(lab.obedient_robot(), RaisingRule()).check_plan(ROBOT_ID, plan_of(KITCHEN))
    assert verdict.decision is Decision.REJECT
    assert verdict.rule_ids == ('gate.error',)
    assert 'buggy' in verdict.reason


class RecordingAudit:
    """An audit that notes the order of things, and fails from a number of records on."""

    def __init__(self, inner: Audit, journal: list[str], fails_from: int) -> None:
        self.inner = inner
        self.journal = journal
        self.left = fails_from

    def append(self, entry: Entry) -> AuditRecord:
        if self.left == 0:
            raise AuditError('disk full')
        self.left -= 1
        self.journal.append(entry.kind.value)
        return self.inner.append(entry)

    def head(self) -> Head:
        return self.inner.head()

    def select(self, wanted: Callable[[AuditRecord], bool], limit: int) -> tuple[AuditRecord, ...]:
        return self.inner.select(wanted, limit)

    def of_task(self, robot_id: str, task_id: str, limit: int) -> tuple[AuditRecord, ...]:
        return self.inner.of_task(robot_id, task_id, limit)


def harness_with_audit(lab: Lab, robot: FakeRobot, audit: RecordingAudit) -> AgentHarness:
    return AgentHarness(
        robots={ROBOT_ID: robot},
        world=lab.world,
        policy=lab.policy,
        audit=audit,
        latch=lab.latch,
        clock=lab.clock,
        observation_timeout_s=0.05,
    )


class JournalingRobot(FakeRobot):
    """A robot that notes the order of things."""

    journal: list[str]

    def execute(self, step: Step, deadline: Deadline) -> StepResult:
        self.journal.append('moves')
        return super().execute(step, deadline)


def test_record_is_written_before_the_robot_moves(lab: Lab) -> None:
    robot = JournalingRobot(ROBOT_ID)
    robot.journal = []
    harness = harness_with_audit(lab, robot, RecordingAudit(lab.audit, robot.journal, 99))
    run(harness, plan_of(KITCHEN))
    assert robot.journal == ['plan', 'act', 'moves', 'result']


def test_what_cannot_be_recorded_is_not_done(lab: Lab) -> None:
    robot = lab.obedient_robot()
    harness = harness_with_audit(lab, robot, RecordingAudit(lab.audit, [], 1))
    result = run(harness, plan_of(KITCHEN))
    assert result.outcome is Outcome.REJECTED_BY_GATE
    assert 'audit.failed' in result.message
    assert robot.executed == []
    assert robot.num_stops > 0


def test_plan_that_cannot_be_recorded_is_rejected(lab: Lab) -> None:
    harness = harness_with_audit(lab, lab.obedient_robot(), RecordingAudit(lab.audit, [], 0))
    assert harness.check_plan(ROBOT_ID, plan_of(KITCHEN)).rule_ids == ('audit.failed',)


def test_result_that_cannot_be_recorded_is_no_success(lab: Lab) -> None:
    harness = harness_with_audit(lab, lab.obedient_robot(), RecordingAudit(lab.audit, [], 2))
    assert run(harness, plan_of(KITCHEN)).outcome is Outcome.INTERNAL


def test_lying_robot_is_a_postcondition_failure(lab: Lab) -> None:
    robot = lab.lying_robot()
    result = run(lab.harness(robot), plan_of(KITCHEN))
    assert result.outcome is Outcome.POSTCONDITION_FAILURE
    assert 'living_room' in result.message
    assert robot.num_stops > 0


def test_success_without_an_observation_is_a_postcondition_failure(lab: Lab) -> None:
    lab.is_blind = True
    result = run(lab.harness(lab.obedient_robot()), plan_of(KITCHEN))
    assert result.outcome is Outcome.POSTCONDITION_FAILURE
    assert 'no evidence' in result.message


def test_broken_driver_stops_the_robot_and_is_a_value(lab: Lab) -> None:
    class BrokenRobot(FakeRobot):
        def execute(self, step: Step, deadline: Deadline) -> StepResult:
            raise UnreachableError('arm is gone')

    robot = BrokenRobot(ROBOT_ID)
    result = run(lab.harness(robot), plan_of(KITCHEN))
    assert result.outcome is Outcome.TIMEOUT
    assert robot.num_stops > 0


class DeafRobot(FakeRobot):
    """A robot whose driver does not answer."""

    def execute(self, step: Step, deadline: Deadline) -> StepResult:
        raise UnreachableError('driver is gone')

    def stop(self) -> None:
        raise UnreachableError('driver is gone')


def test_robot_that_does_not_answer_its_stop_is_reported_and_latched(lab: Lab) -> None:
    harness = lab.harness(DeafRobot(ROBOT_ID))
    assert 'not confirmed' in run(harness, plan_of(KITCHEN)).message
    assert harness.make_safe(ROBOT_ID, 'task1', soon()).outcome is Outcome.TIMEOUT
    assert 'did not confirm' in harness.estop(ROBOT_ID, 'red button').message
    assert open_estop_latch(lab.directory / 'estop.json', ()).is_latched(ROBOT_ID)


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


def test_cancel_during_a_step_ends_it_standing_still(lab: Lab) -> None:
    _, robot, deadline, finish = blocked(lab)
    deadline.cancel()
    assert finish().outcome is Outcome.CANCELED
    assert robot.num_stops > 0


def test_estop_during_a_step_ends_it_as_emergency_stopped(lab: Lab) -> None:
    harness, robot, _, finish = blocked(lab)
    assert harness.estop(ROBOT_ID, 'red button').is_success
    assert robot.num_stops > 0
    assert finish().outcome is Outcome.EMERGENCY_STOPPED


def test_second_step_while_one_runs_is_refused(lab: Lab) -> None:
    harness, _, deadline, finish = blocked(lab)
    assert 'robot.busy' in harness.execute(command(plan_of(KITCHEN), 0), soon()).message
    deadline.cancel()
    finish()


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
