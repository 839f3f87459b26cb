"""What the gate writes into the audit: one pure function a kind of record."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kv_agent_ros.errors import Outcome
from kv_agent_ros.harness.audit_record import AuditKind, Entry
from kv_agent_ros.harness.base import Decision, Finding, StepCommand, Verdict
from kv_agent_ros.harness.registry import Ticket
from kv_agent_ros.robot.base import Step, StepResult
from kv_agent_ros.robot.plan import Json, Plan, plan_to_json
from kv_agent_ros.world.state import WorldState

OUTCOMES: Mapping[Decision, Outcome] = MappingProxyType(
    {
        Decision.ALLOW: Outcome.SUCCESS,
        Decision.DEFER: Outcome.NEEDS_APPROVAL,
        Decision.REJECT: Outcome.REJECTED_BY_GATE,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Errand:
    """A step to be done: of which checked plan, for which task."""

    ticket: Ticket
    step_index: int
    task_id: str

    @property
    def step(self) -> Step:
        return self.ticket.plan.steps[self.step_index]


def plan_entry(robot_id: str, plan: Plan, verdict: Verdict) -> Entry:
    """A plan and its verdict."""
    fields: dict[str, Json] = {
        'plan_id': verdict.plan_id,
        'source': plan.source.value,
        'plan': plan_to_json(plan),
        'decision': verdict.decision.name,
        'outcome': OUTCOMES[verdict.decision].name,
        'rule_ids': list(verdict.rule_ids),
        'reason': verdict.reason,
        'policy_hash': verdict.policy_hash,
        'world_sequence': verdict.world_sequence,
    }
    return Entry(kind=AuditKind.PLAN, robot_id=robot_id, fields=fields)


def approval_entry(robot_id: str, plan_id: str, decision: str, operator: str, reason: str) -> Entry:
    """A person's decision on a deferred plan."""
    fields: dict[str, Json] = {'plan_id': plan_id, 'decision': decision, 'operator': operator, 'reason': reason}
    return Entry(kind=AuditKind.APPROVAL, robot_id=robot_id, fields=fields)


def act_entry(errand: Errand, world: WorldState) -> Entry:
    """A step about to be done, and the world it was judged in."""
    fields = {
        **_step_fields(errand),
        'policy_hash': errand.ticket.verdict.policy_hash,
        'world_sequence': world.sequence,
        'world_stamp_s': world.stamp_s,
    }
    return _entry(AuditKind.ACT, errand, fields)


def result_entry(errand: Errand, result: StepResult) -> Entry:
    """How the act ended."""
    fields = {
        **_step_fields(errand),
        'outcome': result.outcome.name,
        'message': result.message,
        'duration_s': result.duration_s,
    }
    return _entry(AuditKind.RESULT, errand, fields)


def refusal_entry(errand: Errand, findings: tuple[Finding, ...], result: StepResult) -> Entry:
    """A step that was not begun, and the rules against it."""
    fields = {
        **_step_fields(errand),
        'outcome': result.outcome.name,
        'message': result.message,
        'rule_ids': list(dict.fromkeys(finding.rule_id for finding in findings)),
        'policy_hash': errand.ticket.verdict.policy_hash,
    }
    return _entry(AuditKind.REFUSAL, errand, fields)


def command_refusal_entry(command: StepCommand, result: StepResult, rule_id: str) -> Entry:
    """A request to act that was refused before its step was looked at."""
    fields: dict[str, Json] = {
        'plan_id': command.plan_id,
        'step_index': command.step_index,
        'outcome': result.outcome.name,
        'message': result.message,
        'rule_ids': [rule_id],
    }
    return Entry(kind=AuditKind.REFUSAL, robot_id=command.robot_id, task_id=command.task_id, fields=fields)


def _step_fields(errand: Errand) -> dict[str, Json]:
    return {
        'plan_id': errand.ticket.plan.plan_id,
        'step_index': errand.step_index,
        'skill': errand.step.skill,
        'arguments': dict(errand.step.arguments),
    }


def _entry(kind: AuditKind, errand: Errand, fields: Mapping[str, Json]) -> Entry:
    return Entry(kind=kind, robot_id=errand.ticket.robot_id, task_id=errand.task_id, fields=fields)
