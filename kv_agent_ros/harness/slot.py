"""One step at a time on a robot, and a hand on the one that runs."""

import threading

from kv_agent_ros.deadline import Deadline


class StepSlot:
    """Taken for the time of a step. Thread-safe."""

    def __init__(self) -> None:
        self._running: list[Deadline] = []
        self._freed = threading.Condition()

    @property
    def is_taken(self) -> bool:
        with self._freed:
            return bool(self._running)

    def take(self, deadline: Deadline, patience_s: float) -> bool:
        """Take the slot for work under `deadline`, waiting up to `patience_s` for it; False when it stays taken."""
        with self._freed:
            if not self._freed.wait_for(lambda: not self._running, timeout=patience_s):
                return False
            self._running.append(deadline)
            return True

    def give_back(self) -> None:
        """The work is over."""
        with self._freed:
            self._running.clear()
            self._freed.notify_all()

    def cancel(self) -> None:
        """End the running work now, by its deadline."""
        with self._freed:
            for deadline in self._running:
                deadline.cancel()
