"""A guarded robot is a robot: the same verbs, each under the judge, the latch and the audit.

It holds the only reference to the robot it guards. A step is done in this order: latch, world, rules, audit record,
act, an observation later than the act, post-condition, audit record of the result. Any break in it stops the robot.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import AuditError, CanceledError, DeadlineError, KvAgentError, Outcome, UnreachableError
from kv_agent_ros.harness.audit import Audit
from kv_agent_ros.harness.audit_record import Entry
from kv_agent_ros.harness.base import Decision, Finding, Rule, Verdict
from kv_agent_ros.harness.estop import EstopLatch
from kv_agent_ros.harness.evidence import Witness
from kv_agent_ros.harness.judge import Judge, decide
from kv_agent_ros.harness.objections import Law
from kv_agent_ros.harness.records import Errand, act_entry, refusal_entry, result_entry
from kv_agent_ros.harness.registry import Ticket, TicketState
from kv_agent_ros.harness.rules import AUDIT_FAILED, BRANCH_CONDITION, ROBOT_BUSY, STEP_ORDER, TRANSIENT, WORLD_STALE
from kv_agent_ros.harness.slot import StepSlot
from kv_agent_ros.harness.velocity import STILL, VelocityGuard
from kv_agent_ros.robot.base import Robot, RobotState, Skill, Step, StepResult, Velocity
from kv_agent_ros.robot.plan import Plan, enclosing_arms
from kv_agent_ros.world.base import World
from kv_agent_ros.world.conditions import Truth, evaluate
from kv_agent_ros.world.state import WorldState

ZERO_REPEATS = 5  # a lost message must not leave the robot driving
NEVER_S = float('-inf')


class GuardedRobot:
    """A Robot that does only what it may. Thread-safe; one step at a time. `clock`: ROS time in seconds."""

    def __init__(
        self,
        robot_id: str,
        robot: Robot,
        *,
        law: Law,
        extra_rules: tuple[Rule, ...],
        world: World,
        audit: Audit,
        latch: EstopLatch,
        velocity: VelocityGuard,
        witness: Witness,
        clock: Callable[[], float],
    ) -> None:
        self._robot_id = robot_id
        self._robot = robot
        self._law = law
        self._extra_rules = extra_rules
        self._world = world
        self._audit = audit
        self._latch = latch
        self._velocity = velocity
        self._witness = witness
        self._clock = clock
        self._slot = StepSlot()
        self._zeros_left = 0
        self._newest_stop = object()  # another one with each stop

    def skills(self) -> tuple[Skill, ...]:
        """The skills that the policy allows."""
        return tuple(skill for skill in self._robot.skills() if skill.name in self._law.policy.skills.allowed)

    def state(self) -> RobotState:
        return self._robot.state()

    def execute(self, step: Step, deadline: Deadline) -> StepResult:
        """Do one step outside of any plan, under the same rules."""
        return self.perform(self.single_step(replace(step, branch_id=0), ''), deadline, 0.0)

    def drive(self, velocity: Velocity) -> None:
        """Command a velocity within the policy; without effect while a step is done or the e-stop is latched."""
        self._velocity.command(velocity)
        self._zeros_left = ZERO_REPEATS
        self.tick()

    def stop(self) -> None:
        """End the running step and stand still."""
        self._slot.cancel()
        self._velocity.command(STILL)
        self._newest_stop = object()  # after the wish is gone, so that who sees this one has no older velocity
        self._robot.stop()

    def observe_obstacle(self, nearest_m: float) -> None:
        """Tell the distance to the nearest obstacle by the newest scan, for `drive`."""
        self._velocity.observe(nearest_m)

    def tick(self) -> None:
        """Send the velocity that is due; call it at a steady rate."""
        if self._slot.is_taken:
            return
        newest_stop = self._newest_stop
        velocity = self._velocity.tick()
        if velocity != STILL:
            self._zeros_left = ZERO_REPEATS
            self._robot.drive(velocity)
            if self._newest_stop is not newest_stop or self._latch.is_latched(self._robot_id):
                self._robot.drive(STILL)  # the stop overtook the velocity
        elif self._zeros_left > 0:
            self._zeros_left -= 1
            self._robot.drive(STILL)

    def single_step(self, step: Step, task_id: str) -> Errand:
        """A plan of one step, as if it had been checked just now; the check comes when it is performed."""
        plan, now_s = Plan(steps=(step,)), self._clock()
        verdict = Verdict(
            decision=Decision.ALLOW,
            findings=(),
            plan_id=plan.plan_id,
            policy_hash=self._law.policy.policy_hash,
            world_sequence=0,
            expires_s=now_s,
        )
        ticket = Ticket(robot_id=self._robot_id, plan=plan, verdict=verdict, state=TicketState.ALLOWED, renewed_s=now_s)
        return Errand(ticket=ticket, step_index=0, task_id=task_id)

    def judge(self) -> Judge:
        """The rules for the skills that the robot has now."""
        return Judge(self._robot_id, self._robot.skills(), self._law, self._extra_rules)

    def perform(self, errand: Errand, deadline: Deadline, patience_s: float) -> StepResult:
        """Do a step of a checked plan; wait up to `patience_s` for the step before it to end."""
        with self.turn(deadline, patience_s) as is_ours:
            if not is_ours:
                return self._refuse(errand, (_no(errand, ROBOT_BUSY, 'another step is being done'),))
            return self.perform_in_turn(errand, deadline)

    @contextmanager
    def turn(self, deadline: Deadline, patience_s: float) -> Iterator[bool]:
        """Keep all other steps off the robot; yields False when one is still being done after `patience_s`."""
        is_ours = self._slot.take(deadline, patience_s)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._slot.give_back()

    def perform_in_turn(self, errand: Errand, deadline: Deadline) -> StepResult:
        """Do a step of a checked plan within the caller's `turn`."""
        try:
            return self._perform(errand, deadline)
        except AuditError as error:
            return self._still(StepResult(outcome=Outcome.REJECTED_BY_GATE, message=f'{AUDIT_FAILED}: {error}'))

    def _perform(self, errand: Errand, deadline: Deadline) -> StepResult:
        if self._latch.is_latched(self._robot_id):
            return self._noted(refusal_entry(errand, (), self._stopped()), self._stopped())
        try:
            world, findings = self._settle(errand, deadline)
        except UnreachableError as error:
            return self._refuse(errand, (_no(errand, WORLD_STALE, str(error)),))
        except (CanceledError, DeadlineError) as error:
            ended = StepResult(outcome=error.outcome, message=f'{error} before the step was begun')
            return self._noted(refusal_entry(errand, (), ended), ended)
        if findings:
            return self._refuse(errand, findings)
        self._audit.append(act_entry(errand, world))
        result = self._act(errand, world, deadline)
        return self._record_result(errand, result)

    def _settle(self, errand: Errand, deadline: Deadline) -> tuple[WorldState, tuple[Finding, ...]]:
        """The world and the findings on the step, after giving what may pass by itself the time to pass."""
        deadline.check()
        patience = deadline.within(self._law.policy.patience_s)
        world = self._world.snapshot()
        findings = self._judge(errand, world)
        while findings and all(finding.rule_id in TRANSIENT for finding in findings):
            robot = world.robot(self._robot_id)
            try:
                world = self._world.wait_newer(self._robot_id, NEVER_S if robot is None else robot.stamp_s, patience)
            except DeadlineError:
                deadline.check()
                break
            findings = self._judge(errand, world)
        return world, findings

    def _judge(self, errand: Errand, world: WorldState) -> tuple[Finding, ...]:
        ticket = errand.ticket
        findings = self.judge().judge_step(ticket.plan, errand.step_index, world, self._clock(), ticket.approved)
        if errand.step_index < ticket.next_index:
            findings += (_no(errand, STEP_ORDER, f'expected step {ticket.next_index} or later; check the plan again'),)
        return findings + self._judge_branches(errand, world)

    def _judge_branches(self, errand: Errand, world: WorldState) -> tuple[Finding, ...]:
        """A branch goes the way it went when it was first reached; then, the world must say so."""
        decided, findings, max_age_s = dict(errand.ticket.arms), [], self._law.policy.plan.condition_max_age_s
        for branch, arm in enclosing_arms(errand.ticket.plan, errand.step):
            if branch.branch_id in decided:
                if decided[branch.branch_id] is not arm:
                    findings.append(_no(errand, BRANCH_CONDITION, f'{branch.condition} was decided the other way'))
                continue
            found = evaluate(branch.condition, world, self._clock(), max_age_s)
            if found.truth is not (Truth.TRUE if arm else Truth.FALSE):
                findings.append(_no(errand, BRANCH_CONDITION, f'{branch.condition}: {found.reason}'))
        return tuple(findings)

    def _act(self, errand: Errand, world: WorldState, deadline: Deadline) -> StepResult:
        if self._latch.is_latched(self._robot_id):
            return self._stopped()
        begun_s = self._clock()
        result = self._drive_robot(errand.step, deadline)
        if result.is_success:
            result = self._confirm(errand, world, result, deadline)
        if self._latch.is_latched(self._robot_id):
            result = self._stopped()
        if not result.is_success:
            result = self._still(result)
        return replace(result, duration_s=max(0.0, self._clock() - begun_s))

    def _drive_robot(self, step: Step, deadline: Deadline) -> StepResult:
        try:
            return self._robot.execute(step, deadline)
        except KvAgentError as error:
            return StepResult(outcome=error.outcome, message=str(error))
        except BaseException:
            self._robot.stop()
            raise

    def _confirm(self, errand: Errand, before: WorldState, result: StepResult, deadline: Deadline) -> StepResult:
        try:
            seen = self._witness.check(errand.step, self._robot_id, before, self._clock(), deadline)
        except (CanceledError, DeadlineError) as error:
            return replace(result, outcome=error.outcome, message=f'{error} before the effect was observed')
        outcome = Outcome.SUCCESS if seen.is_met else Outcome.POSTCONDITION_FAILURE
        return replace(result, outcome=outcome, message='; '.join(filter(None, (result.message, seen.evidence))))

    def _record_result(self, errand: Errand, result: StepResult) -> StepResult:
        try:
            self._audit.append(result_entry(errand, result))
        except AuditError as error:
            return self._still(replace(result, outcome=Outcome.INTERNAL, message=f'{AUDIT_FAILED}: done, but: {error}'))
        return result

    def _still(self, result: StepResult) -> StepResult:
        """The result, after telling the robot to stand still; says so when the robot does not answer."""
        try:
            self._robot.stop()
        except KvAgentError as error:
            return replace(result, message=f'{result.message}; the stop was not confirmed: {error}')
        return result

    def _refuse(self, errand: Errand, findings: tuple[Finding, ...]) -> StepResult:
        is_deferred = decide(findings) is Decision.DEFER
        outcome = Outcome.NEEDS_APPROVAL if is_deferred else Outcome.REJECTED_BY_GATE
        message = '; '.join(f'{finding.rule_id}: {finding.message}' for finding in findings)
        result = StepResult(outcome=outcome, message=message)
        return self._noted(refusal_entry(errand, findings, result), result)

    def _noted(self, entry: Entry, result: StepResult) -> StepResult:
        """A refusal stands even when it cannot be recorded."""
        try:
            self._audit.append(entry)
        except AuditError as error:
            return replace(result, message=f'{result.message}; {AUDIT_FAILED}: {error}')
        return result

    def _stopped(self) -> StepResult:
        reason = self._latch.reason(self._robot_id)
        return StepResult(outcome=Outcome.EMERGENCY_STOPPED, message=f'e-stop: {reason}; a person must reset it')


def _no(errand: Errand, rule_id: str, message: str) -> Finding:
    return Finding(rule_id=rule_id, decision=Decision.REJECT, message=message, step_index=errand.step_index)
