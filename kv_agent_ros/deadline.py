"""A point in time by which work must end, and a way to end it sooner.

Every call that can take long takes one; long loops call `check()`, waits call `wait()`. Thread-safe.
"""

from collections.abc import Callable
import math
import threading
import time

from kv_agent_ros.errors import BadRequestError, CanceledError, DeadlineError


class Deadline:
    """Ends at `timeout_s` from now on `clock` (seconds, monotonic), or at cancel(), whichever is first."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if isinstance(timeout_s, bool) or not timeout_s > 0 or math.isnan(timeout_s):
            raise BadRequestError(f'timeout_s: expected seconds > 0, got {timeout_s!r}')
        self._clock = clock
        self._at_s = clock() + timeout_s
        self._canceled = threading.Event()

    def cancel(self) -> None:
        """Ask the work to end now; idempotent."""
        self._canceled.set()

    @property
    def is_canceled(self) -> bool:
        return self._canceled.is_set()

    @property
    def remaining_s(self) -> float:
        """Seconds left, never below 0; 0 when cancelled."""
        return 0.0 if self.is_canceled else max(0.0, self._at_s - self._clock())

    @property
    def is_over(self) -> bool:
        return self.remaining_s <= 0.0

    def check(self) -> None:
        """Raise CanceledError or DeadlineError when the work must end."""
        if self.is_canceled:
            raise CanceledError('canceled on request')
        if self.is_over:
            raise DeadlineError('deadline passed')

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`, less when cancelled or over; True when the work must end."""
        self._canceled.wait(min(seconds, self.remaining_s))
        return self.is_over

    def within(self, timeout_s: float) -> 'Deadline':
        """One for a part of the work: ends `timeout_s` from now or with this one; a cancel of either ends both."""
        return self._linked(min(timeout_s, max(self._at_s - self._clock(), 1e-9)))

    def renewed(self, timeout_s: float) -> 'Deadline':
        """One for what must be done after this one passed (making safe); a cancel of either ends both."""
        return self._linked(timeout_s)

    def _linked(self, timeout_s: float) -> 'Deadline':
        other = Deadline(timeout_s, self._clock)
        other._canceled = self._canceled
        return other
