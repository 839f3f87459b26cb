"""The plans that were checked: what was allowed, for which robot, what a person approved, and until when.

A ticket is bound to robot, plan and policy. It is void `ttl_s` after the check, the approval or the last step done.
"""

from dataclasses import dataclass, replace
from enum import Enum
import threading

from kv_agent_ros.harness.base import Finding, Verdict
from kv_agent_ros.robot.base import StepResult
from kv_agent_ros.robot.plan import Plan, enclosing_arms

MAX_TICKETS = 64  # a robot; the oldest go first
LOOKS = frozenset({'find', 'inspect'})  # they change nothing; a branch may need a fresh measurement
CLOCK_TOLERANCE_S = 1.0  # a clock that was set back further than this voids its tickets


class TicketState(Enum):
    """Whether a plan may be executed."""

    ALLOWED = 'allowed'
    """By the gate, or by a person where the gate deferred."""
    PENDING = 'pending'
    """A person must decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """A checked plan. `arms`: what each branch decided when it was first reached.

    `next_index`: the first step that may be done now; a step that failed may be done again, and a look; others not.
    """

    robot_id: str
    plan: Plan
    verdict: Verdict
    state: TicketState
    renewed_s: float
    approved: frozenset[Finding] = frozenset()
    arms: tuple[tuple[int, bool], ...] = ()
    next_index: int = 0

    def approved_at(self, now_s: float) -> 'Ticket':
        """The ticket after a person approved what the gate deferred."""
        return replace(self, state=TicketState.ALLOWED, approved=frozenset(self.verdict.findings), renewed_s=now_s)

    def after(self, step_index: int, result: StepResult, now_s: float) -> 'Ticket':
        """The ticket after that step ended with that result."""
        taken = {branch.branch_id: arm for branch, arm in enclosing_arms(self.plan, self.plan.steps[step_index])}
        arms = {**dict(self.arms), **taken}
        is_over = result.is_success and self.plan.steps[step_index].skill not in LOOKS
        next_index = step_index + 1 if is_over else step_index
        return replace(self, arms=tuple(arms.items()), next_index=next_index, renewed_s=now_s)


class PlanRegistry:
    """The tickets of all robots of a harness. Thread-safe."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._tickets: dict[tuple[str, str], Ticket] = {}
        self._lock = threading.Lock()

    def put(self, ticket: Ticket) -> None:
        """Keep a ticket in place of an older one of the same robot and plan."""
        with self._lock:
            key = (ticket.robot_id, ticket.plan.plan_id)
            self._tickets.pop(key, None)
            self._tickets[key] = ticket
            own = [other for other in self._tickets if other[0] == ticket.robot_id]
            for other in own[:-MAX_TICKETS]:
                del self._tickets[other]

    def update(self, ticket: Ticket) -> None:
        """Replace a ticket, unless it was dropped meanwhile: what was voided stays void."""
        with self._lock:
            key = (ticket.robot_id, ticket.plan.plan_id)
            if key in self._tickets:
                self._tickets[key] = ticket

    def find(self, robot_id: str, plan_id: str, now_s: float) -> Ticket | None:
        """The valid ticket at `now_s` (ROS time), None when there is none or it has expired."""
        with self._lock:
            ticket = self._tickets.get((robot_id, plan_id))
        return ticket if ticket is not None and self._is_valid(ticket, now_s) else None

    def pending(self, robot_id: str, now_s: float) -> tuple[Ticket, ...]:
        """The valid tickets that wait for a person, oldest first."""
        with self._lock:
            own = tuple(ticket for ticket in self._tickets.values() if ticket.robot_id == robot_id)
        return tuple(t for t in own if t.state is TicketState.PENDING and self._is_valid(t, now_s))

    def drop(self, robot_id: str, plan_id: str) -> None:
        """Void one ticket."""
        with self._lock:
            self._tickets.pop((robot_id, plan_id), None)

    def drop_robot(self, robot_id: str) -> None:
        """Void all tickets of a robot."""
        with self._lock:
            self._tickets = {key: ticket for key, ticket in self._tickets.items() if key[0] != robot_id}

    def _is_valid(self, ticket: Ticket, now_s: float) -> bool:
        return -CLOCK_TOLERANCE_S <= now_s - ticket.renewed_s <= self._ttl_s
