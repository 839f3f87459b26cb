"""Walks a checked plan step by step through the gate, deciding each branch once, when it is first reached.

Keeps what happened: a record per step, and for each step done the world before and after it. Recovery is decided
elsewhere.
"""

from collections.abc import Callable
import logging

from kv_agent_ros.agent.proof import Moment
from kv_agent_ros.agent.task import StepRecord, StepStatus, Task
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import DeadlineError, Outcome
from kv_agent_ros.harness.base import Gate, StepCommand
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Branch, Plan, enclosing_arms
from kv_agent_ros.world.base import World
from kv_agent_ros.world.conditions import Evaluation, Truth, evaluate
from kv_agent_ros.world.effects import check_effect
from kv_agent_ros.world.state import WorldState

CONDITION_MAX_AGE_S = 60.0  # an older measurement is taken again before a branch is decided
FRESH_TIMEOUT_S = 3.0  # how long a first observation after an act may take

_log = logging.getLogger(__name__)
_REFUSED = (Outcome.REJECTED_BY_GATE, Outcome.NEEDS_APPROVAL, Outcome.EMERGENCY_STOPPED)
StepListener = Callable[[int], None]


class PlanWalk:
    """One walk through one plan. `clock` is ROS time in seconds, as in the world's stamps."""

    def __init__(
        self, *, task: Task, plan: Plan, gate: Gate, world: World, clock: Callable[[], float], on_step: StepListener
    ) -> None:
        self.records: list[StepRecord] = []
        self.moments: list[Moment] = []
        self._task = task
        self._plan = plan
        self._gate = gate
        self._world = world
        self._clock = clock
        self._on_step = on_step
        self._index = -1
        self._attempt = 1
        self._arms: dict[int, bool] = {}

    def advance(self, deadline: Deadline) -> StepRecord | None:
        """Do, or skip, the next step; None at the end of the plan. Raises UnreachableError."""
        if self._index + 1 >= len(self._plan.steps):
            return None
        self._index += 1
        self._attempt = 1
        return self._try(deadline)

    def repeat(self, deadline: Deadline) -> StepRecord:
        """Try the step of the last record once more: what was not known of its branches is asked again."""
        self._attempt += 1
        return self._try(deadline)

    def _try(self, deadline: Deadline) -> StepRecord:
        step = self._plan.steps[self._index]
        for branch, arm in reversed(list(enclosing_arms(self._plan, step))):
            decided = self._decide(branch, deadline)
            if decided.truth is Truth.UNKNOWN:
                return self._record(step, StepStatus.FAILED, Outcome.PRECONDITION_FAILURE, decided.reason)
            if (decided.truth is Truth.TRUE) is not arm:
                return self._record(step, StepStatus.SKIPPED, Outcome.SUCCESS, f'{branch.condition}: {decided.reason}')
        return self._act(self._index, deadline)

    def _decide(self, branch: Branch, deadline: Deadline) -> Evaluation:
        if branch.branch_id in self._arms:
            truth = Truth.TRUE if self._arms[branch.branch_id] else Truth.FALSE
            return Evaluation(truth=truth, reason='decided before')
        found = self._evaluate(branch, deadline)
        if found.truth is Truth.UNKNOWN:
            found = self._look_again(branch, found, deadline)
        if found.truth is not Truth.UNKNOWN:
            self._arms[branch.branch_id] = found.truth is Truth.TRUE
        return found

    def _evaluate(self, branch: Branch, deadline: Deadline) -> Evaluation:
        return evaluate(branch.condition, self._fresh(self._clock(), deadline), self._clock(), CONDITION_MAX_AGE_S)

    def _look_again(self, branch: Branch, found: Evaluation, deadline: Deadline) -> Evaluation:
        """Repeat the plan's own look at the target, when that was the step before; the gate refuses to go back."""
        before = self._plan.steps[self._index - 1] if self._index else None
        if before is None or before.skill != 'inspect' or before.text('target') != branch.condition.target:
            return found
        _log.info('%s: %s; looking again', branch.condition, found.reason)
        record = self._act(self._index - 1, deadline)
        return self._evaluate(branch, deadline) if record.outcome is Outcome.SUCCESS else found

    def _act(self, index: int, deadline: Deadline) -> StepRecord:
        step = self._plan.steps[index]
        self._on_step(index)
        before = self._world.snapshot()
        command = StepCommand(
            robot_id=self._task.robot_id, task_id=self._task.task_id, plan_id=self._plan.plan_id, step_index=index
        )
        result = self._gate.execute(command, deadline)
        evidence = ''
        if result.is_success:
            after = self._fresh(self._clock(), deadline)
            self.moments.append(Moment(step=step, before=before, after=after))
            evidence = check_effect(step, self._task.robot_id, before, after).evidence
        return self._keep(
            StepRecord(
                index=index,
                step=step,
                status=_status(result.outcome),
                outcome=result.outcome,
                message=result.message,
                evidence=evidence,
                attempt=self._attempt,
                duration_s=result.duration_s,
            )
        )

    def _fresh(self, since_s: float, deadline: Deadline) -> WorldState:
        """A state in which the robot was observed after `since_s`; the latest one when none comes in time."""
        try:
            return self._world.wait_newer(self._task.robot_id, since_s, deadline.within(FRESH_TIMEOUT_S))
        except DeadlineError:
            deadline.check()
            _log.warning('no observation of %s within %.0f s', self._task.robot_id, FRESH_TIMEOUT_S)
            return self._world.snapshot()

    def _record(self, step: Step, status: StepStatus, outcome: Outcome, message: str) -> StepRecord:
        return self._keep(
            StepRecord(
                index=self._index, step=step, status=status, outcome=outcome, message=message, attempt=self._attempt
            )
        )

    def _keep(self, record: StepRecord) -> StepRecord:
        self.records.append(record)
        return record


def _status(outcome: Outcome) -> StepStatus:
    if outcome is Outcome.SUCCESS:
        return StepStatus.SUCCEEDED
    return StepStatus.REFUSED if outcome in _REFUSED else StepStatus.FAILED
