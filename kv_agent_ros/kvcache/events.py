"""Changes of the cache, told in order to one listener, never under the owner's lock."""

from collections import deque
from collections.abc import Callable, Sequence
import threading

from kv_agent_ros.kvcache.block import EventKind, KVEvent, SessionKey, Tier
from kv_agent_ros.kvcache.path import TOKEN_BYTES, TokenPath

EventListener = Callable[[KVEvent], None]

NOBODY = SessionKey(robot_id='', session_id='')


def ignore_event(event: KVEvent) -> None:
    """A listener for owners that need no events."""


class EventLog:
    """Numbers events and hands them on. The notes are guarded by the owner, deliver() is called without its lock."""

    def __init__(self, listener: EventListener) -> None:
        self._listener = listener
        self._waiting: deque[KVEvent] = deque()
        self._delivery = threading.Lock()
        self._sequence = 0

    def note_stored(self, kind: EventKind, path: TokenPath, num_blocks: int, tier: Tier, session: SessionKey) -> None:
        """The last `num_blocks` blocks of a path are in this tier now; none are no event."""
        if num_blocks:
            keys = path.keys()
            first = len(keys) - num_blocks
            self._sequence += 1
            self._waiting.append(
                KVEvent(
                    sequence=self._sequence,
                    kind=kind,
                    block_keys=keys[first:],
                    tier=tier,
                    session=session,
                    parent_key=keys[first - 1] if first else b'',
                    tokens=path.tokens[first * path.block_tokens * TOKEN_BYTES :],
                )
            )

    def note_removed(self, keys: Sequence[bytes], tier: Tier) -> None:
        """Blocks left a tier; none are no event."""
        if keys:
            self._sequence += 1
            self._waiting.append(
                KVEvent(sequence=self._sequence, kind=EventKind.REMOVED, block_keys=tuple(keys), tier=tier)
            )

    def note_cleared(self) -> None:
        """Nothing is in any tier any more."""
        self._sequence += 1
        self._waiting.append(KVEvent(sequence=self._sequence, kind=EventKind.CLEARED))

    def deliver(self) -> None:
        """Call the listener with what waits; a thread that finds another one delivering leaves it to that one."""
        while self._waiting and self._delivery.acquire(blocking=False):
            try:
                while self._waiting:
                    self._listener(self._waiting.popleft())
            finally:
                self._delivery.release()
