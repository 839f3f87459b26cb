"""How simulated time passes: with the wall clock at some factor, or as fast as the steps can be computed.

Both are thread-safe. A step asks for time with `pass_time`, between `join` and `leave`; nothing else makes it wait.
"""

from collections.abc import Callable
import threading
import time
from typing import Protocol

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError

MAX_LAG_S = 0.5  # a step that lags more behind than this (a suspended machine) does not race to catch up
POLL_S = 0.05  # how often a robot that waits for others looks at its own deadline


class Pace(Protocol):
    """The source of simulated time, in seconds."""

    def now_s(self) -> float:
        """The time now; never goes back."""
        ...

    def join(self, robot_id: str) -> None:
        """That robot begins a step."""
        ...

    def leave(self, robot_id: str) -> None:
        """That robot's step is over."""
        ...

    def pass_time(self, robot_id: str, since_s: float, duration_s: float, deadline: Deadline) -> float:
        """Return when `since_s + duration_s` is reached, with the time then. Raises CanceledError, DeadlineError."""
        ...

    def skip(self, duration_s: float) -> None:
        """Time passed outside of steps: a look, a hand-driven move."""
        ...

    def from_wall_s(self, duration_s: float) -> float:
        """What a duration on the wall clock is in simulated time."""
        ...


class RealTime:
    """Simulated time runs `factor` times as fast as `clock`."""

    def __init__(self, start_s: float, factor: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not factor > 0:
            raise BadRequestError(f'realtime_factor: expected > 0, got {factor}; FastTime is "as fast as possible"')
        self._start_s = start_s
        self._factor = factor
        self._clock = clock
        self._began_s = clock()

    def now_s(self) -> float:
        return self._start_s + self.from_wall_s(self._clock() - self._began_s)

    def join(self, robot_id: str) -> None:
        return

    def leave(self, robot_id: str) -> None:
        return

    def pass_time(self, robot_id: str, since_s: float, duration_s: float, deadline: Deadline) -> float:
        end_s = since_s + duration_s
        deadline.check()
        if (ahead_s := end_s - self.now_s()) > 0:
            deadline.wait(ahead_s / self._factor)
            deadline.check()
        return end_s if -ahead_s < MAX_LAG_S * self._factor else self.now_s()

    def skip(self, duration_s: float) -> None:
        return

    def from_wall_s(self, duration_s: float) -> float:
        return duration_s * self._factor


class FastTime:
    """Simulated time passes only when steps, looks and hand-driven moves take it.

    Nobody waits for a clock, but robots that do steps at once wait for each other: none is ahead by more than a tick.
    """

    def __init__(self, start_s: float) -> None:
        self._turn = threading.Condition()
        self._now_s = start_s
        self._running: dict[str, float] = {}

    def now_s(self) -> float:
        with self._turn:
            return self._now_s

    def join(self, robot_id: str) -> None:
        with self._turn:
            self._running[robot_id] = self._now_s

    def leave(self, robot_id: str) -> None:
        with self._turn:
            self._running.pop(robot_id, None)
            self._turn.notify_all()

    def pass_time(self, robot_id: str, since_s: float, duration_s: float, deadline: Deadline) -> float:
        end_s = since_s + duration_s
        with self._turn:
            self._running[robot_id] = end_s
            self._turn.notify_all()
            deadline.check()
            while min(self._running.values()) < since_s:
                self._turn.wait(POLL_S)
                deadline.check()
            self._now_s = max(self._now_s, end_s)
        return end_s

    def skip(self, duration_s: float) -> None:
        with self._turn:
            self._now_s += duration_s

    def from_wall_s(self, duration_s: float) -> float:
        return duration_s
