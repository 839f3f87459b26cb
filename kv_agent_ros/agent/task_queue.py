"""TaskBook: what every robot is to do, does and did. One running task per robot, a bounded line, a bounded past.

The thin task services ask it and return at once; a worker per robot calls `work`. Thread-safe; nothing is called out to
while its lock is held.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
import threading
import time

from kv_agent_ros.agent.journal import ProgressListener
from kv_agent_ros.agent.task import StepRecord, Task, TaskPhase, TaskProgress, TaskResult
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, Outcome, Status
from kv_agent_ros.inference.base import Turn
from kv_agent_ros.robot.plan import Plan

WAIT_SLICE_S = 0.2  # how late a waiter notices that its own deadline was cancelled
MAX_INSTRUCTION_CHARS = 2000
RunTask = Callable[[Task, Deadline, ProgressListener], TaskResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskEntry:
    """One task in the book; accepted at `accepted_s` on the book's clock. `plans`, `steps` and `turns` are those
    so far; `result` is final once the phase is DONE."""

    task: Task
    progress: TaskProgress
    accepted_s: float
    plans: tuple[Plan, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    turns: tuple[Turn, ...] = ()
    result: TaskResult | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None

    def told(self, progress: TaskProgress) -> 'TaskEntry':
        """The entry after this progress."""
        return replace(
            self,
            progress=progress,
            plans=self.plans if progress.plan is None else (*self.plans, progress.plan),
            steps=self.steps if progress.record is None else (*self.steps, progress.record),
            turns=self.turns if progress.turn is None else (*self.turns, progress.turn),
        )


class TaskBook:
    """Accepts, orders, cancels and remembers tasks."""

    def __init__(
        self, *, max_queued: int = 16, max_past: int = 200, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_queued = max_queued
        self._max_past = max_past
        self._clock = clock
        self._changed = threading.Condition()
        self._entries: OrderedDict[str, TaskEntry] = OrderedDict()
        self._deadlines: dict[str, Deadline] = {}  # of tasks that are not done
        self._running: dict[str, str] = {}  # robot id → task id

    def submit(self, task: Task) -> Status:
        """Accept a task; its time starts now. BAD_REQUEST says what is wrong with it, or that the line is full."""
        if not task.task_id or not task.robot_id or not task.instruction.strip():
            return _bad('task: expected a task_id, a robot_id and an instruction')
        if len(task.instruction) > MAX_INSTRUCTION_CHARS:
            return _bad(
                f'instruction: expected at most {MAX_INSTRUCTION_CHARS} characters, got {len(task.instruction)}'
            )
        try:
            deadline = Deadline(task.timeout_s, self._clock)
        except BadRequestError as error:
            return _bad(str(error))
        with self._changed:
            if task.task_id in self._entries:
                return _bad(f'task {task.task_id}: expected an id that is not in use')
            if len(self._waiting(task.robot_id)) >= self._max_queued:
                return _bad(f'{task.robot_id}: expected fewer than {self._max_queued} waiting tasks; try again later')
            progress = TaskProgress(task_id=task.task_id, phase=TaskPhase.QUEUED, message='accepted')
            entry = TaskEntry(task=task, progress=progress, accepted_s=self._clock())
            self._entries[task.task_id] = entry
            self._deadlines[task.task_id] = deadline
            self._changed.notify_all()
        return Status(message='accepted')

    def get(self, task_id: str) -> TaskEntry | None:
        """The task as it stands, None when the book has none of that id (any more)."""
        with self._changed:
            return self._entries.get(task_id)

    def duration_s(self, entry: TaskEntry) -> float:
        """How long the task took; of one that is not done, how long ago it was accepted."""
        return self._clock() - entry.accepted_s if entry.result is None else entry.result.duration_s

    def list(self, robot_id: str) -> tuple[TaskEntry, ...]:
        """That robot's tasks ('' = all robots'), in order of acceptance."""
        with self._changed:
            return tuple(entry for entry in self._entries.values() if robot_id in ('', entry.task.robot_id))

    def cancel(self, task_id: str) -> Status:
        """Ask a task to end: a queued one is CANCELED at once, a running one as soon as the robot stands."""
        with self._changed:
            entry = self._entries.get(task_id)
            if entry is None:
                return _bad(f'task {task_id}: expected a known task')
            if entry.is_done:
                return _bad(f'task {task_id}: expected a task that is not done')
            self._deadlines[task_id].cancel()
            if self._running.get(entry.task.robot_id) == task_id:
                return Status(message='stopping')
            self._close(task_id, TaskResult(task_id=task_id, outcome=Outcome.CANCELED, message='canceled in the line'))
        return Status(message='canceled')

    def cancel_all(self) -> None:
        """End everything, for shutdown."""
        for entry in self.list(''):
            if not entry.is_done:
                self.cancel(entry.task.task_id)

    def work(self, robot_id: str, run: RunTask, patience: Deadline) -> bool:
        """Run the robot's next task to its end in this thread; False when none came before `patience` ended."""
        started = self._start(robot_id, patience)
        if started is None:
            return False
        task, deadline = started
        result = TaskResult(
            task_id=task.task_id, outcome=Outcome.INTERNAL, message='the task ended by an error; see the log'
        )
        try:
            result = run(task, deadline, self._note)
        finally:
            with self._changed:
                del self._running[robot_id]
                self._close(task.task_id, result)
        return True

    def wait_done(self, task_id: str, patience: Deadline) -> TaskEntry | None:
        """The entry once it is done, or as it stands when `patience` ends."""
        with self._changed:
            while (entry := self._entries.get(task_id)) is not None and not entry.is_done and not patience.is_over:
                self._changed.wait(min(WAIT_SLICE_S, patience.remaining_s))
            return entry

    def _start(self, robot_id: str, patience: Deadline) -> tuple[Task, Deadline] | None:
        with self._changed:
            while robot_id in self._running or not self._waiting(robot_id):
                if patience.is_over:
                    return None
                self._changed.wait(min(WAIT_SLICE_S, patience.remaining_s))
            task = self._waiting(robot_id)[0].task
            self._running[robot_id] = task.task_id
            return task, self._deadlines[task.task_id]

    def _waiting(self, robot_id: str) -> tuple[TaskEntry, ...]:
        return tuple(
            entry
            for entry in self._entries.values()
            if entry.task.robot_id == robot_id
            and not entry.is_done
            and self._running.get(robot_id) != entry.task.task_id
        )

    def _note(self, progress: TaskProgress) -> None:
        with self._changed:
            self._entries[progress.task_id] = self._entries[progress.task_id].told(progress)
            self._changed.notify_all()

    def _close(self, task_id: str, result: TaskResult) -> None:
        message = f'{result.outcome.name}: {result.message}'
        progress = TaskProgress(task_id=task_id, phase=TaskPhase.DONE, message=message)
        self._entries[task_id] = replace(self._entries[task_id], progress=progress, result=result)
        del self._deadlines[task_id]
        past = [entry.task.task_id for entry in self._entries.values() if entry.is_done]
        for old in past[: max(0, len(past) - self._max_past)]:
            del self._entries[old]
        self._changed.notify_all()


def _bad(message: str) -> Status:
    return Status(outcome=Outcome.BAD_REQUEST, message=message)
