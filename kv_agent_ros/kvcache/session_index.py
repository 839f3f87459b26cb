"""Which robot's sessions refer to which blocks.

References are soft: they change the order of eviction, never forbid it. What happens for a session belongs to one of
its generations: a turn that began before the session ended cannot refer to anything afterwards. Not thread-safe.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
import itertools
import math

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import SessionKey, SessionUsage
from kv_agent_ros.kvcache.path import TokenPath

_MAX_CLOSED = 8192
_CLOSED = 0  # generation of a session that has ended and was not begun again


@dataclass(kw_only=True, slots=True)
class _Session:
    generation: int = _CLOSED
    keys: set[bytes] = field(default_factory=set)
    prefix: TokenPath = field(default_factory=TokenPath)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_since_s: float = math.inf  # when the engine had turn_tokens of the prompt and began to compute the rest
    turn_tokens: int = 0


class SessionIndex:
    """References by session. Keeps the `max_sessions` that were active last, and knows which ones ended lately."""

    def __init__(self, max_sessions: int = 1024) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._holders: dict[bytes, set[SessionKey]] = {}
        self._closed: OrderedDict[SessionKey, None] = OrderedDict()  # tombstones, the oldest first
        self._generations = itertools.count(_CLOSED + 1)

    def begin(self, session: SessionKey) -> int:
        """A turn begins: the generation that its calls belong to. Opens the session, also one that has ended."""
        self._closed.pop(session, None)
        return self.join(session)

    def join(self, session: SessionKey) -> int:
        """The generation that a call in the middle of a turn belongs to. Does not open a session that has ended."""
        if session in self._closed:
            return _CLOSED
        if session not in self._sessions:
            self._sessions[session] = _Session(generation=next(self._generations))
        self._sessions.move_to_end(session)
        return self._sessions[session].generation

    def refer(self, session: SessionKey, generation: int, prefix: TokenPath, keys: Sequence[bytes]) -> bool:
        """The session uses these blocks; earlier ones stay referenced until they leave the cache or it ends.

        False, and nothing changes, when it is not in this generation any more.
        """
        entry = self._sessions.get(session, _Session())
        if entry.generation == _CLOSED or entry.generation != generation:
            return False
        entry.prefix = prefix
        entry.keys.update(keys)
        for key in keys:
            self._holders.setdefault(key, set()).add(session)
        return True

    def fork(self, source: SessionKey, session: SessionKey) -> int:
        """A second session starts from the prefix that `source` used last; returns how many blocks both refer to."""
        generation = self.begin(session)
        entry = self._sessions.get(source, _Session())
        prefix_keys = entry.prefix.keys()
        shared = [key for key in prefix_keys if key in entry.keys]
        self.refer(session, generation, entry.prefix, shared)
        return len(shared)

    def count(self, session: SessionKey, prompt_tokens: int, cached_tokens: int) -> None:
        """Add one prompt to the books of an open session."""
        if session in self._sessions:
            self._sessions[session].prompt_tokens += prompt_tokens
            self._sessions[session].cached_tokens += cached_tokens

    def start_clock(self, session: SessionKey, num_tokens: int, at_s: float) -> None:
        """An engine has so many tokens of the session's prompt and computes the others from now on."""
        if session in self._sessions:
            self._sessions[session].computed_since_s = at_s
            self._sessions[session].turn_tokens = num_tokens

    def read_clock(self, session: SessionKey, num_tokens: int, at_s: float) -> tuple[int, float]:
        """The engine has so many tokens now: how many it computed since the clock started, in how many seconds."""
        entry = self._sessions.get(session, _Session())
        if entry.computed_since_s > at_s:
            return 0, 0.0
        return max(0, num_tokens - entry.turn_tokens), at_s - entry.computed_since_s

    def is_referenced(self, key: bytes) -> bool:
        return key in self._holders

    def num_references(self, key: bytes) -> int:
        """How many open sessions refer to the block."""
        return len(self._holders.get(key, ()))

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
        """Drop the session's references, until a turn begins nothing adds any; returns how many there were."""
        self._closed[session] = None
        self._closed.move_to_end(session)
        if len(self._closed) > _MAX_CLOSED:
            self._closed.popitem(last=False)
        return self._drop(session)

    def drop_surplus(self) -> Sequence[SessionKey]:
        """Drop the sessions beyond the maximum, longest inactive first; who they were. Whatever they do opens them."""
        num_surplus = max(0, len(self._sessions) - self._max_sessions)
        surplus = list(itertools.islice(self._sessions, num_surplus))  # called often: not a list of all
        for session in surplus:
            self._drop(session)
        return surplus

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
        if self._closed.keys() & self._sessions.keys():
            raise StoreError('session index: a session is open and has ended; this is a bug')
        if held != {(key, session) for key, holders in self._holders.items() for session in holders}:
            raise StoreError('session index: sessions and holders disagree; this is a bug')

    def _drop(self, session: SessionKey) -> int:
        entry = self._sessions.pop(session, _Session())
        for key in entry.keys:
            holders = self._holders[key]
            holders.discard(session)
            if not holders:
                del self._holders[key]
        return len(entry.keys)
