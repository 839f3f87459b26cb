"""Which robot's sessions refer to which blocks.

References are soft: they change the order of eviction, never forbid it. Guarded by the `KVCacheManager`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import SessionKey, SessionUsage
from kv_agent_ros.kvcache.path import TokenPath


@dataclass(kw_only=True, slots=True)
class _Session:
    keys: set[bytes] = field(default_factory=set)
    prefix: TokenPath = field(default_factory=TokenPath)
    prompt_tokens: int = 0
    cached_tokens: int = 0


class SessionIndex:
    """References by session. Keeps the `max_sessions` that were active last."""

    def __init__(self, max_sessions: int = 1024) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._holders: dict[bytes, set[SessionKey]] = {}

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
        """Drop the session's references; returns how many there were."""
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

    def usages(self, pinned: frozenset[SessionKey]) -> tuple[SessionUsage, ...]:
        """The books, longest inactive session first."""
        return tuple(
            SessionUsage(
                session=session,
                num_blocks=len(entry.keys),
                is_pinned=session in pinned,
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
