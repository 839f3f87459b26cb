"""Why a task's last step failed, from its audit records and the world. The model's words are not asked."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.audit_record import AuditKind, AuditRecord
from kv_agent_ros.harness.base import Diagnosis, Recovery
from kv_agent_ros.harness.policy import RecoveryPolicy
from kv_agent_ros.harness.recovery import bounded, count_replans, count_retries
from kv_agent_ros.world.state import WorldState

FAILURE_KINDS = frozenset({AuditKind.PLAN, AuditKind.RESULT, AuditKind.REFUSAL})
NO_FAILURE = 'no_failure'
CAUSES: Mapping[str, Recovery] = MappingProxyType(
    {
        'slip': Recovery.RETRY,
        'path_blocked': Recovery.RETRY,
        'object_missing': Recovery.REPLAN,
        'object_ambiguous': Recovery.MAKE_SAFE,
        'needs_approval': Recovery.MAKE_SAFE,
        'person_near': Recovery.RETRY,
        'battery_low': Recovery.MAKE_SAFE,
        'world_stale': Recovery.RETRY,
        'precondition': Recovery.REPLAN,
        'plan_expired': Recovery.REPLAN,
        'gate_refusal': Recovery.REPLAN,
        'audit_failed': Recovery.MAKE_SAFE,
        'postcondition': Recovery.RETRY,
        'execution': Recovery.RETRY,
        'canceled': Recovery.MAKE_SAFE,
        'timeout': Recovery.REPLAN,
        'estop': Recovery.MAKE_SAFE,
        'robot_not_found': Recovery.MAKE_SAFE,
        'internal': Recovery.MAKE_SAFE,
        NO_FAILURE: Recovery.MAKE_SAFE,
    }
)
"""Every root cause and what it asks for while its budget lasts."""
BY_RULE: Mapping[str, str] = MappingProxyType(
    {
        'object.ambiguous': 'object_ambiguous',
        'approval.required': 'needs_approval',
        'person.near': 'person_near',
        'battery.reserve': 'battery_low',
        'world.stale': 'world_stale',
        'plan.expired': 'plan_expired',
        'precondition': 'precondition',
        'branch.condition': 'precondition',
        'audit.failed': 'audit_failed',
        'estop.latched': 'estop',
    }
)
BY_OUTCOME: Mapping[str, str] = MappingProxyType(
    {
        Outcome.PRECONDITION_FAILURE.name: 'precondition',
        Outcome.PLANNING_FAILURE.name: 'path_blocked',
        Outcome.EXECUTION_FAILURE.name: 'execution',
        Outcome.POSTCONDITION_FAILURE.name: 'postcondition',
        Outcome.INVALID_ACTION.name: 'gate_refusal',
        Outcome.CANCELED.name: 'canceled',
        Outcome.REJECTED_BY_GATE.name: 'gate_refusal',
        Outcome.NEEDS_APPROVAL.name: 'needs_approval',
        Outcome.TIMEOUT.name: 'timeout',
        Outcome.ROBOT_NOT_FOUND.name: 'robot_not_found',
        Outcome.EMERGENCY_STOPPED.name: 'estop',
    }
)
DRIVING_SKILLS = frozenset({'navigate', 'dock'})


def diagnose(records: Sequence[AuditRecord], world: WorldState, robot_id: str, policy: RecoveryPolicy) -> Diagnosis:
    """The root cause of the last failure in a task's records (oldest first), with the evidence and what to do."""
    failed = next((record for record in reversed(records) if _is_failure(record)), None)
    if failed is None:
        message = 'the audit has no failed or refused step of this task'
        return Diagnosis(root_cause=NO_FAILURE, evidence=(), recovery=Recovery.MAKE_SAFE, message=message)
    cause = _cause(failed, world, robot_id)
    num_retries, num_replans = count_retries(records, failed), count_replans(records)
    recovery = bounded(CAUSES[cause], policy, num_retries, num_replans)
    return Diagnosis(
        root_cause=cause,
        evidence=(*_evidence(failed, world, robot_id), f'tried before: {num_retries}; planned again: {num_replans}'),
        recovery=recovery,
        message=f'{_step_text(failed)} failed: {cause}; {recovery.value}',
    )


def _is_failure(record: AuditRecord) -> bool:
    return record.entry.kind in FAILURE_KINDS and record.text('outcome') != Outcome.SUCCESS.name


def _cause(failed: AuditRecord, world: WorldState, robot_id: str) -> str:
    rule_ids = failed.entry.fields.get('rule_ids', ())
    by_rule = [BY_RULE[rule] for rule in BY_RULE if isinstance(rule_ids, Sequence) and rule in rule_ids]
    cause = by_rule[0] if by_rule else BY_OUTCOME.get(failed.text('outcome'), 'internal')
    if cause in ('execution', 'postcondition', 'precondition', 'timeout'):
        return _refined(cause, failed, world, robot_id)
    return cause


def _refined(cause: str, failed: AuditRecord, world: WorldState, robot_id: str) -> str:
    """What the world adds: a thing that is gone, a grip that did not hold, a way that did not lead there."""
    skill, target, robot = failed.text('skill'), _target(failed), world.robot(robot_id)
    is_object = skill in ('find', 'inspect', 'pick')
    if is_object and target and not world.find_objects(target):
        return 'object_missing'
    if cause in ('precondition', 'timeout'):
        return cause
    if skill == 'pick' and robot is not None and not robot.holding:
        return 'slip'
    if skill == 'place' and cause == 'execution':
        return 'slip'
    if skill in DRIVING_SKILLS and cause == 'execution':
        return 'path_blocked'
    return 'object_missing' if skill == 'find' else cause


def _evidence(failed: AuditRecord, world: WorldState, robot_id: str) -> tuple[str, ...]:
    lines = [f'audit record {failed.seq}: {failed.text("outcome")}: {failed.text("message")}']
    robot = world.robot(robot_id)
    if robot is not None:
        holding = robot.holding or 'nothing'
        lines.append(f'{robot_id} in {robot.room or "no known room"}, holding {holding}, battery {robot.battery:.0%}')
    for thing in world.find_objects(_target(failed)):
        lines.append(
            f'{thing.object_id} last seen at {thing.seen_s:.1f} s, {thing.location or thing.room or "nowhere"}'
        )
    return tuple(lines)


def _target(record: AuditRecord) -> str:
    arguments = record.entry.fields.get('arguments', {})
    target = arguments.get('target', '') if isinstance(arguments, Mapping) else ''
    return target if isinstance(target, str) else ''


def _step_text(record: AuditRecord) -> str:
    return f'{record.text("skill")}({_target(record)})' if record.text('skill') else 'the plan'
