"""One holder at a time, and the waiting request with the highest priority is next (first come first among equals)."""

from collections.abc import Iterator
from contextlib import contextmanager
import heapq
import threading

from kv_agent_ros.deadline import Deadline

POLL_S = 0.02  # a cancelled Deadline wakes nobody, so waiting requests look by themselves


class TurnQueue:
    """A lock with an order. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: list[tuple[int, int]] = []  # heap of (-priority, ticket)
        self._next_ticket = 0
        self._is_taken = False

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn now."""
        with self._condition:
            return len(self._waiting)

    @contextmanager
    def turn(self, priority: int, deadline: Deadline) -> Iterator[None]:
        """Wait for the turn and hold it; raises CanceledError or DeadlineError when the deadline comes first."""
        self._take(priority, deadline)
        try:
            yield
        finally:
            with self._condition:
                self._is_taken = False
                self._condition.notify_all()

    def _take(self, priority: int, deadline: Deadline) -> None:
        with self._condition:
            place = (-priority, self._next_ticket)
            self._next_ticket += 1
            heapq.heappush(self._waiting, place)
            try:
                while self._is_taken or self._waiting[0] != place:
                    deadline.check()
                    self._condition.wait(POLL_S)
                self._is_taken = True
            finally:
                self._waiting.remove(place)
                heapq.heapify(self._waiting)
                self._condition.notify_all()
