"""What happened in one task, as it happens: plans, steps, turns, moments; feedback on the way, a result at the end."""

from collections.abc import Callable, Sequence

from kv_agent_ros.agent.proof import Moment
from kv_agent_ros.agent.task import StepRecord, StepStatus, Task, TaskPhase, TaskProgress, TaskResult
from kv_agent_ros.errors import Status
from kv_agent_ros.inference.base import Turn
from kv_agent_ros.robot.plan import Plan

ProgressListener = Callable[[TaskProgress], None]


def ignore_progress(progress: TaskProgress) -> None:
    """A ProgressListener for callers that wait for the result."""


class Journal:
    """One task's journal. Listeners are called in the thread of the task."""

    def __init__(self, task: Task, on_progress: ProgressListener, started_s: float) -> None:
        self.task = task
        self.started_s = started_s
        self.plans: list[Plan] = []
        self.steps: list[StepRecord] = []
        self.moments: list[Moment] = []
        self.turns: list[Turn] = []
        self._on_progress = on_progress
        self._num_begun = 0

    @property
    def has_acted(self) -> bool:
        """Whether any step reached the robot or may have: also one whose end nobody has told."""
        return self._num_begun > 0

    @property
    def done(self) -> str:
        """The steps done so far, in words."""
        return ', '.join(str(moment.step) for moment in self.moments) or 'nothing'

    def tell(self, phase: TaskPhase, message: str) -> None:
        """Say where the task is."""
        self._send(TaskProgress(task_id=self.task.task_id, phase=phase, message=message))

    def add_turns(self, turns: Sequence[Turn]) -> None:
        """Keep model calls and report each."""
        for turn in turns:
            self.turns.append(turn)
            message = f'{turn.purpose}: {turn.outcome.name.lower()}'
            self._send(TaskProgress(task_id=self.task.task_id, phase=TaskPhase.PLANNING, message=message, turn=turn))

    def add_plan(self, plan: Plan, message: str) -> None:
        """Keep a plan that the gate has allowed."""
        self.plans.append(plan)
        self._send(
            TaskProgress(
                task_id=self.task.task_id,
                phase=TaskPhase.PLANNING,
                message=message,
                plan=plan,
                num_steps=len(plan.steps),
            )
        )

    def begin_step(self, index: int) -> None:
        """Report that a step of the latest plan begins."""
        self._num_begun += 1
        plan = self.plans[-1]
        self._step(index, StepStatus.RUNNING, str(plan.steps[index]))

    def add_step(self, record: StepRecord) -> None:
        """Keep how a step went."""
        self.steps.append(record)
        message = f'{record.step}: {record.evidence or record.message}'.rstrip(': ')
        self._step(record.index, record.status, message, record)

    def result(self, status: Status, report: str, audit_head: str, now_s: float) -> TaskResult:
        """The final result, told as the last progress too."""
        self.tell(TaskPhase.DONE, f'{status.outcome.name}: {status.message}')
        return TaskResult(
            task_id=self.task.task_id,
            outcome=status.outcome,
            message=status.message,
            plans=tuple(self.plans),
            steps=tuple(self.steps),
            turns=tuple(self.turns),
            duration_s=now_s - self.started_s,
            audit_head=audit_head,
            report=report,
        )

    def _step(self, index: int, status: StepStatus, message: str, record: StepRecord | None = None) -> None:
        self._send(
            TaskProgress(
                task_id=self.task.task_id,
                phase=TaskPhase.EXECUTING,
                message=message,
                step_index=index,
                step_status=status,
                num_steps=len(self.plans[-1].steps),
                record=record,
            )
        )

    def _send(self, progress: TaskProgress) -> None:
        self._on_progress(progress)
