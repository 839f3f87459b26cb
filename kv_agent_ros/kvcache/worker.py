"""One thread that works through a bounded queue, and is replaced when a job kills it.

A job that raises is a defect: its traceback is printed as that of any thread, the death is counted, and a fresh thread
goes on with the next job, so that what waits is neither lost nor stuck.
"""

from collections import deque
from collections.abc import Callable
import threading
from typing import Generic, TypeVar

Job = TypeVar('Job')


class Worker(Generic[Job]):
    """Calls `work` with one job at a time, in order. Thread-safe; the thread starts with the first job."""

    def __init__(self, *, name: str, work: Callable[[Job], None], max_queued: int) -> None:
        self._name = name
        self._work = work
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._is_running = False
        self._is_busy = False
        self._is_closing = False
        self.num_deaths = 0

    def submit(self, job: Job) -> bool:
        """Queue a job; False when the queue is full or closed, and then it is never worked on."""
        with self._changed:
            if self._is_closing or len(self._queue) >= self._max_queued:
                return False
            self._queue.append(job)
            if not self._is_running:
                self._start()
            self._changed.notify_all()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is done; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._is_busy, timeout_s)

    def drop(self) -> tuple[Job, ...]:
        """Take back what waits; the job that runs goes on."""
        with self._changed:
            dropped = tuple(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        return dropped

    def close(self, timeout_s: float) -> bool:
        """Take no more jobs, do those that wait, end the thread; False when that takes longer. Idempotent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._is_running, timeout_s)

    def _start(self) -> None:
        self._is_running = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        has_died = True
        try:
            while self._next():
                pass
            has_died = False
        finally:
            with self._changed:
                self._is_running = self._is_busy = False
                if has_died:
                    self.num_deaths += 1
                    self._start()
                self._changed.notify_all()

    def _next(self) -> bool:
        """Do one job; False when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            if not self._queue:
                return False
            job = self._queue.popleft()
            self._is_busy = True
        self._work(job)
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
        return True
