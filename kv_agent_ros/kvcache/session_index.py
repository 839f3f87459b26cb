"""Which robot's sessions refer to which blocks, and which of them are pinned.

References are soft: they change the order of eviction, never forbid it. A pin does forbid it, and therefore ends by
itself and is capped by the `KVCacheManager`, which owns this index and guards it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import SessionKey, SessionUsage
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pin:
    """A lock on a session's prefix until `expires_s` on the manager's clock."""

    lock: PathLock
    expires_s: float
    num_bytes: int


@dataclass(kw_only=True, slots=True)
class _Session:
    keys: set[bytes] = field(default_factory=set)
    prefix: TokenPath = field(default_factory=TokenPath)
    prompt_tokens: int = 0
    cached_tokens: int = 0


class SessionIndex:
    """References and pins by session. Keeps the `max_sessions` that were active last."""

    def __init__(self, max_sessions: int = 1024) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._holders: dict[bytes, set[SessionKey]] = {}
        self._pins: dict[SessionKey, Pin] = {}

    def refer(self, session: SessionKey, prefix: TokenPath, keys: Sequence[bytes]) -> None:
        """The session uses these blocks; earlier ones stay referenced until they leave the cache or it ends."""
        entry = self._sessions.setdefault(session, _Session())
        self._sessions.move_to_end(session)
        entry.prefix = prefix
        entry.keys.update(keys)
        for key in keys:
            self._holders.setdefault(key, set()).add(session)

    def count(self, session: SessionKey, prompt_tokens: int, cached_tokens: int) -> None:
        """Add one prompt to the session's books."""
        entry = self._sessions.setdefault(session, _Session())
        entry.prompt_tokens += prompt_tokens
        entry.cached_tokens += cached_tokens

    def is_referenced(self, key: bytes) -> bool:
        return key in self._holders

    def forget_blocks(self, keys: Iterable[bytes]) -> None:
        """These blocks left the cache."""
        for key in keys:
            for session in self._holders.pop(key, ()):
                self._sessions[session].keys.discard(key)

    def prefix(self, session: SessionKey) -> TokenPath:
        """What the session used last; empty for an unknown session."""
        entry = self._sessions.get(session)
        return TokenPath() if entry is None else entry.prefix

    def end(self, session: SessionKey) -> int:
        """Drop the session's references; returns how many there were. Its pin is taken with take_pin()."""
        entry = self._sessions.pop(session, _Session())
        for key in entry.keys:
            holders = self._holders[key]
            holders.discard(session)
            if not holders:
                del self._holders[key]
        return len(entry.keys)

    def surplus(self) -> Sequence[SessionKey]:
        """Sessions beyond the maximum, longest inactive first; the owner ends them."""
        return list(self._sessions)[: max(0, len(self._sessions) - self._max_sessions)]

    def set_pin(self, session: SessionKey, pin: Pin) -> None:
        self._pins[session] = pin

    def take_pin(self, session: SessionKey) -> list[Pin]:
        """Remove and return the session's pin; empty when it has none."""
        return [self._pins.pop(session)] if session in self._pins else []

    def take_expired_pins(self, at_s: float) -> list[Pin]:
        """Remove and return the pins whose time is over."""
        expired = [session for session, pin in self._pins.items() if pin.expires_s <= at_s]
        return [self._pins.pop(session) for session in expired]

    @property
    def pinned_bytes(self) -> int:
        """Sum over all pins; blocks that two sessions pin count twice."""
        return sum(pin.num_bytes for pin in self._pins.values())

    def usages(self) -> tuple[SessionUsage, ...]:
        """The books, longest inactive session first."""
        return tuple(
            SessionUsage(
                session=session,
                num_blocks=len(entry.keys),
                is_pinned=session in self._pins,
                prompt_tokens=entry.prompt_tokens,
                cached_tokens=entry.cached_tokens,
            )
            for session, entry in self._sessions.items()
        )

    def check_integrity(self) -> None:
        """Raise StoreError when sessions and holders disagree."""
        held = {(key, session) for session, entry in self._sessions.items() for key in entry.keys}
        if held != {(key, session) for key, holders in self._holders.items() for session in holders}:
            raise StoreError('session index: sessions and holders disagree; this is a bug')
