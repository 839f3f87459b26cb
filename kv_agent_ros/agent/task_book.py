"""The tasks of a robot: what waits, what runs, how the others ended. One runs at a time, first come, first served.

It runs nothing itself: a worker takes the next task and brings back its result. Thread-safe.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
import threading

from kv_agent_ros.agent.journal import ProgressListener, ignore_progress
from kv_agent_ros.agent.task import Task, TaskPhase, TaskProgress, TaskResult
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, Outcome

MAX_TIMEOUT_S = 24 * 3600.0
MAX_INSTRUCTION_CHARS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskEntry:
    """A task and where it is. `results` is empty until it is done. `is_dry_run`: plan and judge only."""

    task: Task
    deadline: Deadline
    accepted_s: float
    is_dry_run: bool = False
    phase: TaskPhase = TaskPhase.QUEUED
    message: str = ''
    results: tuple[TaskResult, ...] = ()
    listener: ProgressListener = field(default=ignore_progress, repr=False)

    @property
    def is_done(self) -> bool:
        return self.phase is TaskPhase.DONE


class TaskBook:
    """Entries by task id, the newest `max_history` of them. `clock` is steady, in seconds."""

    def __init__(
        self, *, max_queue: int, clock: Callable[[], float], make_id: Callable[[], str], max_history: int = 200
    ) -> None:
        self._max_queue = max_queue
        self._max_history = max_history
        self._clock = clock
        self._make_id = make_id
        self._changed = threading.Condition()
        self._entries: OrderedDict[str, TaskEntry] = OrderedDict()

    def submit(
        self, instruction: str, robot_id: str, timeout_s: float, listener: ProgressListener = ignore_progress
    ) -> TaskEntry:
        """Accept a task. Raises BadRequestError when it makes no sense or too many wait already."""
        return self._accept(instruction, robot_id, timeout_s, listener, is_dry_run=False)

    def submit_dry_run(
        self, instruction: str, robot_id: str, timeout_s: float, listener: ProgressListener = ignore_progress
    ) -> TaskEntry:
        """Accept a task that is only to be planned and judged. Raises as `submit` does."""
        return self._accept(instruction, robot_id, timeout_s, listener, is_dry_run=True)

    def _accept(
        self, instruction: str, robot_id: str, timeout_s: float, listener: ProgressListener, is_dry_run: bool
    ) -> TaskEntry:
        if not 0 < len(instruction.strip()) <= MAX_INSTRUCTION_CHARS:
            raise BadRequestError(f'instruction: expected 1 to {MAX_INSTRUCTION_CHARS} characters of text')
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise BadRequestError(f'timeout_s: expected seconds in (0, {MAX_TIMEOUT_S:.0f}], got {timeout_s}')
        task = Task(task_id=self._make_id(), robot_id=robot_id, instruction=instruction, timeout_s=timeout_s)
        entry = TaskEntry(
            task=task,
            deadline=Deadline(timeout_s, self._clock),
            accepted_s=self._clock(),
            is_dry_run=is_dry_run,
            listener=listener,
        )
        with self._changed:
            if sum(waiting.phase is TaskPhase.QUEUED for waiting in self._entries.values()) >= self._max_queue:
                raise BadRequestError(f'queue: expected at most {self._max_queue} waiting tasks; cancel one or wait')
            self._entries[task.task_id] = entry
            self._forget()
            self._changed.notify_all()
        return entry

    def get(self, task_id: str) -> TaskEntry:
        """That task. Raises BadRequestError when there is none."""
        with self._changed:
            if task_id not in self._entries:
                raise BadRequestError(f'task_id: no task {task_id!r}; list_tasks has the known ones')
            return self._entries[task_id]

    def newest(self, limit: int) -> tuple[TaskEntry, ...]:
        """The newest tasks, newest first."""
        with self._changed:
            return tuple(reversed(self._entries.values()))[:limit]

    def cancel(self, task_id: str) -> TaskEntry:
        """Ask a task to end. One that waits is done at once. Raises BadRequestError when there is none."""
        entry = self.get(task_id)
        entry.deadline.cancel()
        with self._changed:
            entry = self._entries[task_id]
            if entry.phase is TaskPhase.QUEUED:
                entry = self._end(entry, TaskResult(task_id=task_id, outcome=Outcome.CANCELED, message='never begun'))
            return entry

    def cancel_all(self) -> None:
        """Ask every task to end."""
        for entry in self.newest(self._max_history):
            if not entry.is_done:
                self.cancel(entry.task.task_id)

    def take(self, wait_s: float) -> tuple[TaskEntry, ...]:
        """The next task to run, marked as begun; empty when none comes within `wait_s`."""
        with self._changed:
            self._changed.wait_for(self._has_waiting, wait_s)
            for entry in self._entries.values():
                if entry.phase is TaskPhase.QUEUED:
                    begun = replace(entry, phase=TaskPhase.RECALLING)
                    self._entries[entry.task.task_id] = begun
                    return (begun,)
            return ()

    def note(self, progress: TaskProgress) -> None:
        """Keep where a running task is."""
        with self._changed:
            entry = self._entries.get(progress.task_id)
            if entry is not None and not entry.is_done and progress.phase is not TaskPhase.DONE:
                self._entries[progress.task_id] = replace(entry, phase=progress.phase, message=progress.message)

    def finish(self, result: TaskResult) -> None:
        """Keep a result; whoever waits for it wakes up."""
        with self._changed:
            entry = self._entries.get(result.task_id)
            if entry is not None:
                self._end(entry, result)

    def wait(self, task_id: str, wait_s: float) -> TaskEntry:
        """The task, as soon as it is done, at the latest after `wait_s`."""
        with self._changed:
            self._changed.wait_for(lambda: task_id not in self._entries or self._entries[task_id].is_done, wait_s)
        return self.get(task_id)

    def _end(self, entry: TaskEntry, result: TaskResult) -> TaskEntry:
        ended = replace(entry, phase=TaskPhase.DONE, message=result.message, results=(result,))
        self._entries[entry.task.task_id] = ended
        self._changed.notify_all()
        return ended

    def _has_waiting(self) -> bool:
        return any(entry.phase is TaskPhase.QUEUED for entry in self._entries.values())

    def _forget(self) -> None:
        done = [task_id for task_id, entry in self._entries.items() if entry.is_done]
        for task_id in done[: max(0, len(self._entries) - self._max_history)]:
            del self._entries[task_id]
