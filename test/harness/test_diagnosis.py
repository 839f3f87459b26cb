"""From a task's records and the world to one root cause, and from that to a bounded recovery."""

import pytest

from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.audit_record import GENESIS, AuditKind, AuditRecord, Entry, seal
from kv_agent_ros.harness.base import Recovery
from kv_agent_ros.harness.diagnosis import CAUSES, diagnose
from kv_agent_ros.harness.policy import RecoveryPolicy
from kv_agent_ros.harness.recovery import bounded
from kv_agent_ros.robot.plan import Json
from kv_agent_ros.world.fake import example_cup, example_world, with_objects

POLICY = RecoveryPolicy(max_retries=2, max_replans=2)
WORLD = with_objects(example_world('robot1', 100.0), example_cup('cup_1', 1.0, 100.0))


def ended(outcome: Outcome, skill: str, target: str, *rule_ids: str, seq: int = 1, plan_id: str = 'p1') -> AuditRecord:
    fields: dict[str, Json] = {
        'plan_id': plan_id,
        'step_index': 0,
        'skill': skill,
        'arguments': {'target': target},
        'outcome': outcome.name,
        'message': 'so it was',
        'rule_ids': list(rule_ids),
    }
    kind = AuditKind.REFUSAL if rule_ids else AuditKind.RESULT
    return seal(seq, 1.0, Entry(kind=kind, robot_id='robot1', task_id='t', fields=fields), GENESIS)


@pytest.mark.parametrize(
    ('record', 'cause'),
    [
        (ended(Outcome.EXECUTION_FAILURE, 'pick', 'cup'), 'slip'),
        (ended(Outcome.POSTCONDITION_FAILURE, 'pick', 'cup'), 'slip'),
        (ended(Outcome.EXECUTION_FAILURE, 'pick', 'bowl'), 'object_missing'),
        (ended(Outcome.POSTCONDITION_FAILURE, 'find', 'bowl'), 'object_missing'),
        (ended(Outcome.EXECUTION_FAILURE, 'navigate', 'kitchen'), 'path_blocked'),
        (ended(Outcome.PLANNING_FAILURE, 'navigate', 'kitchen'), 'path_blocked'),
        (ended(Outcome.EXECUTION_FAILURE, 'dock', ''), 'path_blocked'),
        (ended(Outcome.POSTCONDITION_FAILURE, 'pour', 'sink'), 'postcondition'),
        (ended(Outcome.PRECONDITION_FAILURE, 'pour', 'sink'), 'precondition'),
        (ended(Outcome.TIMEOUT, 'navigate', 'kitchen'), 'timeout'),
        (ended(Outcome.CANCELED, 'navigate', 'kitchen'), 'canceled'),
        (ended(Outcome.EMERGENCY_STOPPED, 'navigate', 'kitchen'), 'estop'),
        (ended(Outcome.INTERNAL, 'navigate', 'kitchen'), 'internal'),
        (ended(Outcome.REJECTED_BY_GATE, 'navigate', 'kitchen', 'zone.keep_out'), 'gate_refusal'),
        (ended(Outcome.REJECTED_BY_GATE, 'navigate', 'kitchen', 'world.stale'), 'world_stale'),
        (ended(Outcome.REJECTED_BY_GATE, 'navigate', 'kitchen', 'person.near'), 'person_near'),
        (ended(Outcome.REJECTED_BY_GATE, 'pick', 'bowl', 'precondition'), 'object_missing'),
        (ended(Outcome.NEEDS_APPROVAL, 'pick', 'cup', 'object.ambiguous'), 'object_ambiguous'),
    ],
)
def test_each_kind_of_failure_has_its_cause(record: AuditRecord, cause: str) -> None:
    diagnosis = diagnose((record,), WORLD, 'robot1', POLICY)
    assert diagnosis.root_cause == cause
    assert cause in CAUSES
    assert 'so it was' in diagnosis.evidence[0]


def test_success_after_a_failure_leaves_the_failure_as_the_last_one() -> None:
    records = (
        ended(Outcome.CANCELED, 'dock', '', seq=1),
        ended(Outcome.SUCCESS, 'dock', '', seq=2),
    )
    assert diagnose(records, WORLD, 'robot1', POLICY).root_cause == 'canceled'


def test_retries_then_replans_then_safety() -> None:
    records: tuple[AuditRecord, ...] = ()
    recoveries = []
    for plan_id in ('p1', 'p2', 'p3'):
        for _ in range(3):
            failure = ended(Outcome.EXECUTION_FAILURE, 'navigate', 'kitchen', seq=len(records) + 1, plan_id=plan_id)
            records = (*records, failure)
            recoveries.append(diagnose(records, WORLD, 'robot1', POLICY).recovery)
    retry, replan, safe = Recovery.RETRY, Recovery.REPLAN, Recovery.MAKE_SAFE
    assert recoveries == [retry, retry, replan, retry, retry, replan, retry, retry, safe]


def test_nothing_is_tried_where_the_policy_allows_no_attempts() -> None:
    none = RecoveryPolicy(max_retries=0, max_replans=0)
    assert {bounded(wanted, none, 0, 0) for wanted in Recovery} == {Recovery.MAKE_SAFE}
