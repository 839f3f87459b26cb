"""Changes of the cache, told in order to one listener, never under the owner's lock."""

from collections import deque
from collections.abc import Callable, Sequence
import threading

from kv_agent_ros.kvcache.block import EventKind, KVEvent, SessionKey, Tier

EventListener = Callable[[KVEvent], None]

NOBODY = SessionKey(robot_id='', session_id='')


def ignore_event(event: KVEvent) -> None:
    """A listener for owners that need no events."""


class EventLog:
    """Numbers events and hands them on. note() is guarded by the owner, deliver() is called without its lock."""

    def __init__(self, listener: EventListener) -> None:
        self._listener = listener
        self._waiting: deque[KVEvent] = deque()
        self._delivery = threading.Lock()
        self._sequence = 0

    def note(
        self, kind: EventKind, keys: Sequence[bytes], tier: Tier = Tier.DRAM, session: SessionKey = NOBODY
    ) -> None:
        """Add an event; one about no blocks is none, except CLEARED."""
        if keys or kind is EventKind.CLEARED:
            self._sequence += 1
            self._waiting.append(
                KVEvent(sequence=self._sequence, kind=kind, block_keys=tuple(keys), tier=tier, session=session)
            )

    def deliver(self) -> None:
        """Call the listener with what waits; a thread that finds another one delivering leaves it to that one."""
        while self._waiting and self._delivery.acquire(blocking=False):
            try:
                while self._waiting:
                    self._listener(self._waiting.popleft())
            finally:
                self._delivery.release()
