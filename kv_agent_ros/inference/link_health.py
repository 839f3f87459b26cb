"""Whether a peer that has failed may be asked again: a pause that doubles, and then one probe at a time.

The request itself is the probe, so a healthy link costs nothing and a broken one costs one request a pause.
"""

from collections.abc import Callable
import threading


class LinkHealth:
    """Thread-safe. Each begin() that says True is answered by one of succeeded(), failed() or gave_up()."""

    def __init__(
        self, *, clock: Callable[[], float], first_pause_s: float = 1.0, longest_pause_s: float = 60.0
    ) -> None:
        self._clock = clock
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._lock = threading.Lock()
        self._num_failures = 0  # in a row
        self._open_at_s = 0.0  # nobody is let through before, while there are failures
        self._has_probe = False

    @property
    def num_failures(self) -> int:
        """Failures since the last success."""
        with self._lock:
            return self._num_failures

    @property
    def is_usable(self) -> bool:
        """Whether begin() would say True now."""
        with self._lock:
            return self._is_usable()

    def begin(self) -> bool:
        """Whether this request may use the link; after failures only one at a time, behind a pause."""
        with self._lock:
            is_usable = self._is_usable()
            self._has_probe = self._has_probe or (is_usable and self._num_failures > 0)
            return is_usable

    def succeeded(self) -> None:
        """The peer has answered."""
        with self._lock:
            self._num_failures = 0
            self._has_probe = False

    def failed(self) -> None:
        """The peer was lost, silent or too busy."""
        with self._lock:
            pause_s = min(self._longest_pause_s, self._first_pause_s * 2.0 ** min(self._num_failures, 30))
            self._num_failures += 1
            self._open_at_s = self._clock() + pause_s
            self._has_probe = False

    def gave_up(self) -> None:
        """The request ended before it could tell anything about the peer."""
        with self._lock:
            self._has_probe = False

    def _is_usable(self) -> bool:
        if not self._num_failures:
            return True
        return not self._has_probe and self._clock() >= self._open_at_s
