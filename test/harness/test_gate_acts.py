"""What the gate does around an act: once, recorded first, with evidence, and with a person where one is needed."""

from collections.abc import Callable
from dataclasses import replace

from gate_steps import COUNTER, KITCHEN, blocked, command, plan_of, run, soon

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import AuditError, Outcome, UnreachableError
from kv_agent_ros.harness.audit import Audit
from kv_agent_ros.harness.audit_key import Head
from kv_agent_ros.harness.audit_record import AuditKind, AuditRecord, Entry
from kv_agent_ros.harness.base import Decision, Finding, StepContext
from kv_agent_ros.harness.estop import open_estop_latch
from kv_agent_ros.harness.fake import ROBOT_ID, Lab
from kv_agent_ros.harness.harness import AgentHarness
from kv_agent_ros.robot.base import Step, StepResult
from kv_agent_ros.robot.fake import FakeRobot
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.world.fake import example_cup


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
