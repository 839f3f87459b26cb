"""How often to try again: retries and re-plans are bounded, then the robot is made safe."""

from collections.abc import Sequence

from kv_agent_ros.harness.audit_record import AuditKind, AuditRecord
from kv_agent_ros.harness.base import Recovery
from kv_agent_ros.harness.policy import RecoveryPolicy


def bounded(wanted: Recovery, policy: RecoveryPolicy, num_retries: int, num_replans: int) -> Recovery:
    """The recovery wanted while its budget lasts; a spent retry becomes a re-plan, a spent re-plan makes safe."""
    if wanted is Recovery.RETRY and num_retries < policy.max_retries:
        return Recovery.RETRY
    if wanted is not Recovery.MAKE_SAFE and num_replans < policy.max_replans:
        return Recovery.REPLAN
    return Recovery.MAKE_SAFE


def count_retries(records: Sequence[AuditRecord], failed: AuditRecord) -> int:
    """How often the failed step of that plan was begun or refused before this time, by a task's records."""
    step = (failed.text('plan_id'), failed.text('step_index'))
    endings = (AuditKind.RESULT, AuditKind.REFUSAL)
    same = [r for r in records if r.entry.kind in endings and (r.text('plan_id'), r.text('step_index')) == step]
    return max(0, len(same) - 1)


def count_replans(records: Sequence[AuditRecord]) -> int:
    """How many plans a task has used beyond its first."""
    plans = {record.text('plan_id') for record in records if record.text('plan_id')}
    return max(0, len(plans) - 1)
