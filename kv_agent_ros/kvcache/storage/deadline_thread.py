"""A thread for operations that may never return: the caller waits no longer than a deadline.

A system call cannot be taken back. What is late goes on in the thread, is told to undo itself when it ends, and until
then the thread counts as hanging.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
import threading


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(kw_only=True, slots=True, eq=False)
class _Job:
    act: Callable[[], None]
    undo: Callable[[], None]
    is_done: bool = False
    is_abandoned: bool = False
    over: threading.Lock = field(default_factory=_held_lock)  # released when the job is over; cheaper than an Event


class DeadlineThread:
    """One thread, started at its first job and again should a defect end it. Callers take turns themselves."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_running = False  # whether a thread takes jobs; one that dies of a defect lives on for a while
        self._num_abandoned = 0

    @property
    def is_hanging(self) -> bool:
        """Whether an abandoned operation is still running."""
        return self._num_abandoned > 0

    def run(self, act: Callable[[], None], deadline_s: float, undo: Callable[[], None]) -> bool:
        """Whether `act` returned in time. When it returns later, `undo` is called, in the thread."""
        job = _Job(act=act, undo=undo)
        self._start()
        self._jobs.put(job)
        if job.over.acquire(timeout=deadline_s):
            return job.is_done
        with self._lock:
            if job.over.acquire(blocking=False):  # it ended just now
                return job.is_done
            job.is_abandoned = True
            self._num_abandoned += 1
        return False

    def stop(self) -> None:
        """Let the thread end after what it does now; it does not keep the process alive."""
        self._jobs.put(None)

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.act()
                job.is_done = True
            finally:
                self._is_running = job.is_done
                self._end(job)
        self._is_running = False

    def _end(self, job: _Job) -> None:
        with self._lock:
            job.over.release()
            if not job.is_abandoned:
                return
        job.undo()
        with self._lock:
            self._num_abandoned -= 1
