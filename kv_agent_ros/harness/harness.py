"""The safety harness: a Gate around the robots it holds. Nobody else has them.

Plans are judged as a whole, then each step again when it is done. This is software: it is no certified safety function
and replaces neither the hardware e-stop nor the risk assessment.
"""

from collections.abc import Callable, Mapping
from functools import partial
import time

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import AuditError, KvAgentError, Outcome, Status, UnreachableError
from kv_agent_ros.harness.audit import Audit
from kv_agent_ros.harness.audit_record import AuditKind, Entry
from kv_agent_ros.harness.base import Decision, Diagnosis, Finding, Rule, StepCommand, Verdict
from kv_agent_ros.harness.diagnosis import diagnose
from kv_agent_ros.harness.estop import EstopLatch
from kv_agent_ros.harness.evidence import Witness
from kv_agent_ros.harness.guarded import GuardedRobot
from kv_agent_ros.harness.judge import decide
from kv_agent_ros.harness.objections import Law
from kv_agent_ros.harness.policy import Policy
from kv_agent_ros.harness.records import Errand, approval_entry, command_refusal_entry, plan_entry
from kv_agent_ros.harness.registry import PlanRegistry, Ticket, TicketState
from kv_agent_ros.harness.rules import (
    APPROVAL_PENDING,
    AUDIT_FAILED,
    ESTOP_LATCHED,
    PLAN_EXPIRED,
    ROBOT_BUSY,
    ROBOT_UNKNOWN,
    WORLD_STALE,
)
from kv_agent_ros.harness.velocity import VelocityGuard
from kv_agent_ros.robot.base import Robot, Step, StepResult
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.world.base import World
from kv_agent_ros.world.state import WorldState

MAX_TASK_RECORDS = 1000
STEP_END_S = 10.0  # how long a step that was cancelled may take to end
NOT_DONE = frozenset({Outcome.REJECTED_BY_GATE, Outcome.NEEDS_APPROVAL, Outcome.EMERGENCY_STOPPED})


class AgentHarness:
    """A Gate. `clock`: ROS time in seconds; `steady_clock`: for the velocity watchdog."""

    def __init__(
        self,
        *,
        robots: Mapping[str, Robot],
        world: World,
        policy: Policy,
        audit: Audit,
        latch: EstopLatch,
        clock: Callable[[], float],
        steady_clock: Callable[[], float] = time.monotonic,
        observation_timeout_s: float = 5.0,
        velocity_timeout_s: float = 0.4,
        extra_rules: tuple[Rule, ...] = (),
    ) -> None:
        self._world = world
        self._policy = policy
        self._audit = audit
        self._latch = latch
        self._clock = clock
        self._registry = PlanRegistry(policy.plan.ttl_s)
        self._robots = {
            robot_id: GuardedRobot(
                robot_id,
                robot,
                law=Law(policy=policy, predict=world.predict),
                extra_rules=extra_rules,
                world=world,
                audit=audit,
                latch=latch,
                velocity=VelocityGuard(
                    policy.velocity, velocity_timeout_s, partial(latch.is_latched, robot_id), steady_clock
                ),
                witness=Witness(world, observation_timeout_s),
                clock=clock,
            )
            for robot_id, robot in robots.items()
        }

    def robot(self, robot_id: str) -> GuardedRobot | None:
        """The robot under guard, None when this harness holds none of that name."""
        return self._robots.get(robot_id)

    def check_plan(self, robot_id: str, plan: Plan) -> Verdict:
        findings, world_sequence = self._judge(robot_id, plan)
        verdict = self._verdict(plan, findings, world_sequence)
        try:
            self._audit.append(plan_entry(robot_id, plan, verdict))
        except AuditError as error:
            return self._verdict(plan, (*findings, _no(AUDIT_FAILED, str(error))), world_sequence)
        self._register(robot_id, plan, verdict)
        return verdict

    def check_step(self, robot_id: str, step: Step) -> Verdict:
        """Judge a plan of this one step; nothing is registered or recorded."""
        plan = Plan(steps=(step,))
        return self._verdict(plan, *self._judge(robot_id, plan))

    def approve(self, robot_id: str, plan_id: str, operator: str, reason: str) -> Status:
        """A person allows a deferred plan. What the gate rejects cannot be approved."""
        now_s = self._clock()
        ticket = self._registry.find(robot_id, plan_id, now_s)
        refused = self._cannot_decide(ticket, operator)
        if ticket is None or not refused.is_success:
            return refused
        try:
            self._audit.append(approval_entry(robot_id, plan_id, 'approved', operator, reason))
        except AuditError as error:
            return Status(outcome=error.outcome, message=f'{AUDIT_FAILED}: {error}')
        self._registry.update(ticket.approved_at(now_s))
        return Status(message=f'{operator} approved {plan_id}')

    def deny(self, robot_id: str, plan_id: str, operator: str, reason: str) -> Status:
        """A person forbids a deferred plan; it is void."""
        refused = self._cannot_decide(self._registry.find(robot_id, plan_id, self._clock()), operator)
        if not refused.is_success:
            return refused
        self._registry.drop(robot_id, plan_id)
        return self._note(approval_entry(robot_id, plan_id, 'denied', operator, reason), f'{operator} denied {plan_id}')

    def pending(self, robot_id: str) -> tuple[Ticket, ...]:
        """The plans that wait for a person."""
        return self._registry.pending(robot_id, self._clock())

    def execute(self, command: StepCommand, deadline: Deadline) -> StepResult:
        guarded = self._robots.get(command.robot_id)
        if guarded is None:
            return StepResult(outcome=Outcome.ROBOT_NOT_FOUND, message=f'no robot {command.robot_id!r} here')
        if self._latch.is_latched(command.robot_id):
            return self._refuse(command, ESTOP_LATCHED, self._stopped(command.robot_id))
        with guarded.turn(deadline, 0.0) as is_ours:
            if not is_ours:
                message = f'{ROBOT_BUSY}: another step is being done'
                busy = StepResult(outcome=Outcome.REJECTED_BY_GATE, message=message)
                return self._refuse(command, ROBOT_BUSY, busy)
            return self._execute(guarded, command, deadline)

    def make_safe(self, robot_id: str, task_id: str, deadline: Deadline) -> StepResult:
        guarded = self._robots.get(robot_id)
        if guarded is None:
            return StepResult(outcome=Outcome.ROBOT_NOT_FOUND, message=f'no robot {robot_id!r} here')
        try:
            guarded.stop()
        except KvAgentError as error:
            return StepResult(outcome=error.outcome, message=f'the robot did not confirm its stop: {error}')
        noted = self._note(Entry(kind=AuditKind.MAKE_SAFE, robot_id=robot_id, task_id=task_id), 'stopped')
        if not noted.is_success:
            return StepResult(outcome=Outcome.REJECTED_BY_GATE, message=f'{AUDIT_FAILED}: {noted.message}')
        if self._latch.is_latched(robot_id):
            return self._stopped(robot_id)
        dock = guarded.single_step(Step(skill='dock'), task_id)
        return guarded.perform(dock, deadline, min(STEP_END_S, deadline.remaining_s))

    def estop(self, robot_id: str, reason: str) -> Status:
        """Stop that robot now, and keep it stopped until a person resets it, over restarts too."""
        guarded = self._robots.get(robot_id)
        if guarded is None:
            return _not_found(robot_id)
        self._latch.latch(robot_id, reason or 'no reason given')
        self._registry.drop_robot(robot_id)
        try:
            guarded.stop()
        except KvAgentError as error:
            kept = self._keep_estop(robot_id, reason)
            unsure = f'latched, but the robot did not confirm its stop: {error}; {kept.message}'
            return Status(outcome=error.outcome, message=unsure)
        return self._keep_estop(robot_id, reason)

    def reset_estop(self, robot_id: str, operator: str) -> Status:
        """A person allows motion again. Nothing moves by itself: plans from before are void."""
        if robot_id not in self._robots:
            return _not_found(robot_id)
        if not operator.strip():
            return Status(outcome=Outcome.BAD_REQUEST, message='operator: expected the name of a person, got none')
        if not self._latch.is_latched(robot_id):
            return Status(message=f'{robot_id} was not stopped')
        fields = {'operator': operator, 'was': self._latch.reason(robot_id)}
        try:
            self._audit.append(Entry(kind=AuditKind.ESTOP_RESET, robot_id=robot_id, fields=fields))
            self._registry.drop_robot(robot_id)
            self._latch.release(robot_id)
        except AuditError as error:
            return Status(outcome=error.outcome, message=f'{AUDIT_FAILED}: still latched: {error}')
        if self._latch.is_latched(robot_id):
            return Status(outcome=Outcome.EMERGENCY_STOPPED, message=f'{robot_id} was stopped again meanwhile')
        return Status(message=f'{operator} reset the e-stop of {robot_id}')

    def diagnose(self, robot_id: str, task_id: str) -> Diagnosis:
        of_task = self._audit.of_task(robot_id, task_id, MAX_TASK_RECORDS)
        newest = self._audit.select(lambda record: record.entry.robot_id == robot_id, 1)
        refused_plans = tuple(record for record in newest if record.entry.kind is AuditKind.PLAN)
        return diagnose((*of_task, *refused_plans), self._world.snapshot(), robot_id, self._policy.recovery)

    def audit_head(self, robot_id: str) -> str:
        return self._audit.head().hash

    def tick(self) -> None:
        """Send the velocities that are due to all robots; call it at a steady rate (10 Hz or more)."""
        for guarded in self._robots.values():
            guarded.tick()

    def _execute(self, guarded: GuardedRobot, command: StepCommand, deadline: Deadline) -> StepResult:
        """Within the robot's turn: what one caller did, the next one's ticket says."""
        ticket = self._registry.find(command.robot_id, command.plan_id, self._clock())
        if ticket is None or not 0 <= command.step_index < len(ticket.plan.steps):
            message = (
                f'{PLAN_EXPIRED}: step {command.step_index} of {command.plan_id!r} is unknown or void; check again'
            )
            return self._refuse(command, PLAN_EXPIRED, StepResult(outcome=Outcome.REJECTED_BY_GATE, message=message))
        if ticket.state is TicketState.PENDING:
            pending = StepResult(outcome=Outcome.NEEDS_APPROVAL, message=ticket.verdict.reason)
            return self._refuse(command, APPROVAL_PENDING, pending)
        errand = Errand(ticket=ticket, step_index=command.step_index, task_id=command.task_id)
        result = guarded.perform_in_turn(errand, deadline)
        if result.outcome not in NOT_DONE:
            self._registry.update(ticket.after(command.step_index, result, self._clock()))
        return result

    def _judge(self, robot_id: str, plan: Plan) -> tuple[tuple[Finding, ...], int]:
        guarded = self._robots.get(robot_id)
        if guarded is None:
            return (_no(ROBOT_UNKNOWN, f'no robot {robot_id!r} here, expected one of {sorted(self._robots)}'),), 0
        if self._latch.is_latched(robot_id):
            return (_no(ESTOP_LATCHED, self._stopped(robot_id).message),), 0
        try:
            world: WorldState = self._world.snapshot()
            return guarded.judge().judge_plan(plan, world, self._clock()), world.sequence
        except UnreachableError as error:
            return (_no(WORLD_STALE, str(error)),), 0

    def _verdict(self, plan: Plan, findings: tuple[Finding, ...], world_sequence: int) -> Verdict:
        return Verdict(
            decision=decide(findings),
            findings=findings,
            plan_id=plan.plan_id,
            policy_hash=self._policy.policy_hash,
            world_sequence=world_sequence,
            expires_s=self._clock() + self._policy.plan.ttl_s,
        )

    def _register(self, robot_id: str, plan: Plan, verdict: Verdict) -> None:
        """A rejected plan voids an earlier ticket for the same plan."""
        if verdict.decision is Decision.REJECT:
            self._registry.drop(robot_id, plan.plan_id)
            return
        state = TicketState.ALLOWED if verdict.decision is Decision.ALLOW else TicketState.PENDING
        self._registry.put(Ticket(robot_id=robot_id, plan=plan, verdict=verdict, state=state, renewed_s=self._clock()))

    def _cannot_decide(self, ticket: Ticket | None, operator: str) -> Status:
        if not operator.strip():
            return Status(outcome=Outcome.BAD_REQUEST, message='operator: expected the name of a person, got none')
        if ticket is None or ticket.state is not TicketState.PENDING:
            return Status(outcome=Outcome.BAD_REQUEST, message='no such plan waits for approval; check it again')
        return Status()

    def _refuse(self, command: StepCommand, rule_id: str, result: StepResult) -> StepResult:
        """A refusal stands, whether or not it can be recorded."""
        self._note(command_refusal_entry(command, result, rule_id), '')
        return result

    def _keep_estop(self, robot_id: str, reason: str) -> Status:
        try:
            self._latch.save()
        except AuditError as error:
            return Status(outcome=error.outcome, message=f'stopped, but the latch would not survive a restart: {error}')
        return self._note(
            Entry(kind=AuditKind.ESTOP, robot_id=robot_id, fields={'reason': reason}), f'{robot_id} is stopped'
        )

    def _note(self, entry: Entry, message: str) -> Status:
        try:
            self._audit.append(entry)
        except AuditError as error:
            return Status(outcome=error.outcome, message=str(error))
        return Status(message=message)

    def _stopped(self, robot_id: str) -> StepResult:
        message = f'e-stop: {self._latch.reason(robot_id)}; a person must reset it'
        return StepResult(outcome=Outcome.EMERGENCY_STOPPED, message=message)


def _no(rule_id: str, message: str) -> Finding:
    return Finding(rule_id=rule_id, decision=Decision.REJECT, message=message)


def _not_found(robot_id: str) -> Status:
    return Status(outcome=Outcome.ROBOT_NOT_FOUND, message=f'no robot {robot_id!r} here')
