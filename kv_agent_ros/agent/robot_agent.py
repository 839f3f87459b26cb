"""RobotAgent: one task from a sentence to a proven result. Read this file first; it is the whole system in order.

    recall     memory finds similar tasks and plans that worked            recall.py → memory/
    plan       the model drafts, rules judge, the rule planner stands by   planner.py → inference/ → kvcache/
    check      the gate allows, defers or rejects the plan                 harness/
    act        each step through the gate, branches decided when reached   walk.py → harness/ → robot/
    observe    the world after each step, from perception                  world/
    recover    diagnose, then repeat, plan again, or make safe             harness/diagnosis.py
    prove      the goal is measured in the world                           proof.py
    remember   the plan goes to memory, the conversation to its session    recall.py, session_store.py

The agent holds no robot and no model. It cannot bypass the gate, and nothing that a model says counts as evidence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
import logging
import time

from kv_agent_ros.agent.base import UNCACHED, Planner, PlanProposal, PlanRequest, SessionCache
from kv_agent_ros.agent.journal import Journal, ProgressListener, ignore_progress
from kv_agent_ros.agent.language import read_instruction
from kv_agent_ros.agent.proof import judge
from kv_agent_ros.agent.recall import TaskMemory
from kv_agent_ros.agent.rest import rest_of
from kv_agent_ros.agent.session import AgentSession
from kv_agent_ros.agent.session_store import SessionStore
from kv_agent_ros.agent.task import StepRecord, Task, TaskMode, TaskPhase, TaskResult
from kv_agent_ros.agent.walk import PlanWalk
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import KvAgentError, Outcome, Status
from kv_agent_ros.harness.base import Decision, Gate, Recovery
from kv_agent_ros.memory.base import Memory
from kv_agent_ros.robot.plan import Plan
from kv_agent_ros.world.base import World

FINAL = frozenset({Outcome.CANCELED, Outcome.NEEDS_APPROVAL, Outcome.EMERGENCY_STOPPED})  # no more tries after these

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLimits:
    """How often the agent tries, and how long making safe may take once the task's own time is over."""

    max_refusals: int = 2  # of proposals, by the gate, before the task fails
    max_replans: int = 2
    max_same_plan: int = 2  # an equal plan once more: what was not seen at first may be seen then
    max_attempts: int = 3  # of one step
    safe_timeout_s: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Errand:
    """A task under way: its journal, its conversation, its time."""

    journal: Journal
    session: AgentSession
    deadline: Deadline

    @property
    def task(self) -> Task:
        return self.journal.task


class RobotAgent:
    """Runs tasks, one at a time per robot. `clock`: ROS time in seconds; `steady_clock`: for durations."""

    def __init__(
        self,
        *,
        planner: Planner,
        gate: Gate,
        world: World,
        memory: Memory,
        sessions: SessionStore,
        cache: SessionCache = UNCACHED,
        clock: Callable[[], float],
        steady_clock: Callable[[], float] = time.monotonic,
        limits: AgentLimits = AgentLimits(),
    ) -> None:
        self._planner = planner
        self._gate = gate
        self._world = world
        self._memory = TaskMemory(memory)
        self._sessions = sessions
        self._cache = cache
        self._clock = clock
        self._steady_clock = steady_clock
        self._limits = limits
        self._acts = {TaskMode.DO: self._do, TaskMode.REHEARSE: self._rehearse}

    def run(self, task: Task, deadline: Deadline, on_progress: ProgressListener = ignore_progress) -> TaskResult:
        """Do or rehearse the task, as its mode says; always a result."""
        return self._acts[task.mode](task, deadline, on_progress)

    def _do(self, task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
        """The robot stands still after it, after a failure at its dock if possible."""
        journal = Journal(task, on_progress, self._steady_clock())
        report = ''
        try:
            errand = self._begin(journal, deadline)
            status = self._pursue(errand)
            if not status.is_success:
                status = self._make_safe(journal, status, deadline)
            report = self._explain(errand, status)
            errand.session.close_task(f'{task.instruction}: {status.outcome.name}')
            self._sessions.save(errand.session)
            self._memory.remember(task, status, journal.plans, self._clock())
        except KvAgentError as error:
            _log.error('task %s: %s', task.task_id, error)
            status = self._make_safe(journal, Status(outcome=error.outcome, message=str(error)), deadline)
        return journal.result(status, report, self._audit_head(task.robot_id), self._steady_clock())

    def _rehearse(self, task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
        """Plan the task and let the gate judge the plan; nothing moves, and only the conversation is kept."""
        journal = Journal(task, on_progress, self._steady_clock())
        try:
            errand = self._begin(journal, deadline)
            request = replace(self._request(errand, ''), recollections=self._memory.recall(task))
            plan, status = self._plan(errand, request)
            status = status if plan is None else Status(message='the gate allows this plan; nothing was done')
        except KvAgentError as error:
            status = Status(outcome=error.outcome, message=str(error))
        return journal.result(status, '', self._audit_head(task.robot_id), self._steady_clock())

    def _begin(self, journal: Journal, deadline: Deadline) -> _Errand:
        """The robot's conversation goes on; its KV comes to memory while similar tasks are looked for."""
        session = self._sessions.resume(journal.task.robot_id)
        epoch = session.state.epoch
        session.begin_task()
        if session.state.epoch == epoch:
            self._cache.warm(session.key, deadline.remaining_s)
        else:
            self._cache.forget(session.key)
        return _Errand(journal=journal, session=session, deadline=deadline)

    def _pursue(self, errand: _Errand) -> Status:
        """Plan, act and prove; plan again from where things stand while the diagnosis says so."""
        journal = errand.journal
        journal.tell(TaskPhase.RECALLING, 'looking for similar tasks')
        request = self._request(errand, '')
        request = replace(request, recollections=self._memory.recall(errand.task))
        status = Status()
        try:
            for _ in range(1 + self._limits.max_replans):
                plan, status = self._plan(errand, request)
                if plan is None:
                    return status
                status, recovery = self._carry_out(errand, plan)
                if status.is_success:
                    return self._prove(errand)
                if recovery is not Recovery.REPLAN or journal.plans.count(plan) >= self._limits.max_same_plan:
                    return status
                errand.deadline.check()
                request = self._request(errand, f'{status.message}. Done so far: {journal.done}')
        except KvAgentError as error:
            return Status(outcome=error.outcome, message=str(error))
        return status

    def _plan(self, errand: _Errand, request: PlanRequest) -> tuple[Plan | None, Status]:
        """A plan that the gate allows, or why there is none. What the gate refuses goes back to the planner."""
        refused: set[str] = set()
        status = Status()
        while len(refused) <= self._limits.max_refusals:
            errand.journal.tell(TaskPhase.PLANNING, request.refusal or 'asking the planner')
            proposal = self._planner.plan(request, errand.deadline)
            self._keep(errand, proposal)
            plan = proposal.plan
            if plan is None:
                return None, Status(outcome=proposal.outcome, message=proposal.message)
            verdict = self._gate.check_plan(errand.task.robot_id, plan)
            if verdict.decision is Decision.ALLOW:
                errand.journal.add_plan(plan, f'{proposal.message}; the gate allows it')
                return plan, Status()
            if verdict.decision is Decision.DEFER:
                return None, Status(outcome=Outcome.NEEDS_APPROVAL, message=verdict.reason)
            status = Status(outcome=Outcome.REJECTED_BY_GATE, message=verdict.reason)
            if plan.plan_id in refused:
                break
            refused.add(plan.plan_id)
            request = self._request(errand, f'the gate refused: {verdict.reason}')
        return None, status

    def _carry_out(self, errand: _Errand, plan: Plan) -> tuple[Status, Recovery]:
        """Walk the plan; a failed step is repeated while the diagnosis says that its cause may be gone."""
        journal, deadline = errand.journal, errand.deadline
        walk = PlanWalk(
            task=errand.task,
            plan=plan,
            gate=self._gate,
            world=self._world,
            clock=self._clock,
            on_step=journal.begin_step,
        )
        try:
            while (record := walk.advance(deadline)) is not None:
                journal.add_step(record)
                while record.outcome is not Outcome.SUCCESS:
                    deadline.check()
                    recovery = self._recovery(journal, record)
                    if recovery is not Recovery.RETRY:
                        return Status(outcome=record.outcome, message=f'{record.step}: {record.message}'), recovery
                    record = walk.repeat(deadline)
                    journal.add_step(record)
            return Status(), Recovery.MAKE_SAFE
        finally:
            journal.moments.extend(walk.moments)

    def _prove(self, errand: _Errand) -> Status:
        """SUCCESS only when observations show the goal; a plan that ran to its end is no proof."""
        world = self._world.wait_newer(errand.task.robot_id, self._clock(), errand.deadline)
        reading = read_instruction(errand.task.instruction, world)
        proof = judge(reading.intents, errand.journal.moments, world, errand.task.robot_id)
        if proof.is_met:
            return Status(message='; '.join(proof.facts))
        return Status(outcome=Outcome.POSTCONDITION_FAILURE, message='; '.join(proof.missing))

    def _recovery(self, journal: Journal, failed: StepRecord) -> Recovery:
        if failed.outcome in FINAL:
            return Recovery.MAKE_SAFE
        diagnosis = self._gate.diagnose(journal.task.robot_id, journal.task.task_id)
        journal.tell(TaskPhase.RECOVERING, f'{diagnosis.root_cause}: {diagnosis.message} → {diagnosis.recovery.value}')
        if diagnosis.recovery is Recovery.RETRY and failed.attempt >= self._limits.max_attempts:
            return Recovery.REPLAN
        return diagnosis.recovery

    def _make_safe(self, journal: Journal, status: Status, deadline: Deadline) -> Status:
        """Stand still; then go home, unless the task was cancelled. A robot that did nothing stays where it is."""
        if not journal.has_acted:
            return status
        journal.tell(TaskPhase.RECOVERING, 'making the robot safe')
        within = deadline.renewed(self._limits.safe_timeout_s)
        try:
            safe = self._gate.make_safe(journal.task.robot_id, journal.task.task_id, within)
        except KvAgentError as error:
            return replace(status, message=f'{status.message}; not confirmed safe: {error}')
        if deadline.is_canceled and status.outcome is not Outcome.EMERGENCY_STOPPED:
            return Status(outcome=Outcome.CANCELED, message=f'{status.message}; the robot stands still')
        end = 'the robot is at its dock' if safe.is_success else f'the robot stopped where it was: {safe.message}'
        return replace(status, message=f'{status.message}; {end}')

    def _explain(self, errand: _Errand, status: Status) -> str:
        """A sentence of the model for people; it changes nothing."""
        if errand.deadline.is_over or not errand.journal.plans:
            return ''
        facts = f'{status.outcome.name}: {status.message}'
        try:
            told = self._planner.explain(self._request(errand, ''), facts, errand.deadline)
        except KvAgentError as error:
            _log.warning('task %s: no explanation: %s', errand.task.task_id, error)
            return ''
        errand.session.append(told.appended, told.turns)
        errand.journal.add_turns(told.turns)
        return told.text

    def _request(self, errand: _Errand, refusal: str) -> PlanRequest:
        """What the planner is asked: the task, or after a failure what is left of it."""
        task, world = errand.task, self._world.snapshot()
        left = rest_of(task.instruction, errand.journal.moments, world, task.robot_id)
        return PlanRequest(
            session=errand.session.key,
            history=errand.session.messages,
            task=replace(task, instruction=left),
            world=world,
            refusal=refusal,
        )

    def _keep(self, errand: _Errand, proposal: PlanProposal) -> None:
        """The conversation is on disk before the robot moves."""
        errand.session.append(proposal.appended, proposal.turns)
        self._sessions.save(errand.session)
        errand.journal.add_turns(proposal.turns)
        for note in proposal.notes:
            errand.journal.tell(TaskPhase.PLANNING, note)

    def _audit_head(self, robot_id: str) -> str:
        try:
            return self._gate.audit_head(robot_id)
        except KvAgentError:
            return ''
