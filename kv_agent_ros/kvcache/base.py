"""The door through which an engine uses the cache, in this process or another.

`KVCacheManager` is one implementation (direct), the ROS client another. Bytes never pass through it: leases say where
they are, `storage.host.SegmentMap` maps them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kv_agent_ros.kvcache.block import CacheStats, KVNamespace, PrefixLease, SessionKey, Tier, TokenArray, WriteLease


class PrefetchPolicy(Enum):
    """How long the caller waits."""

    BEST_EFFORT = 'best_effort'
    """Not at all; the rest goes on behind."""
    WAIT_COMPLETE = 'wait_complete'
    """Until all is there; when that takes too long, the rest goes on behind."""
    TIMEOUT = 'timeout'
    """Until all is there; when that takes too long, the rest is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefetched:
    """What a prefetch has reached when its caller goes on."""

    num_blocks: int  # of the prefix that are in memory now
    is_complete: bool  # nothing more is on its way


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixMatch:
    """How much of a prompt would be served, and from where."""

    sources: tuple[tuple[Tier, int], ...] = ()  # (tier, tokens), in the order of the prompt

    @property
    def matched_tokens(self) -> int:
        return sum(num_tokens for _, num_tokens in self.sources)


class PrefixCache(Protocol):
    """Leases on cached prefixes. Thread-safe. Every lease ends by release(), commit() or its own time-out."""

    def acquire(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> PrefixLease:
        """The longest cached prefix of `tokens`, locked, promoted to shared memory. A miss is an empty lease.

        Never more than len(tokens) - 1 tokens, so that the engine always has one token left to compute.
        Raises UnreachableError when the cache cannot be asked; callers then compute everything.
        """
        ...

    def reserve(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> WriteLease:
        """Slots to write for those full blocks of `tokens` that are not cached; fewer (or none) under pressure."""
        ...

    def commit(self, lease_id: str, checksums: Sequence[bytes]) -> int:
        """Publish the first len(checksums) slots of a write lease (xxh3-128 each); returns how many became visible.

        Blocks that somebody else published meanwhile count as visible. An expired lease
        publishes nothing and returns 0.
        """
        ...

    def release(self, lease_id: str) -> None:
        """End a lease; idempotent, unknown ids are ignored."""
        ...

    def discard(self, lease_id: str, num_good_blocks: int) -> None:
        """End a read lease whose block number `num_good_blocks` does not have its checksum.

        That block and everything after it leave every tier, unless the cache finds that it does have it.
        """
        ...

    def prefetch(
        self,
        namespace: KVNamespace,
        session: SessionKey,
        tokens: TokenArray,
        policy: PrefetchPolicy,
        timeout_s: float,
    ) -> Prefetched:
        """Bring what `tokens` needs to memory ahead of its turn; without tokens, what the session used last."""
        ...

    def fork(self, source: SessionKey, session: SessionKey) -> int:
        """A second session starts from the first one's prefix: a retry, a reflection, another candidate.

        Returns how many blocks both refer to.
        """
        ...

    def pin(self, session: SessionKey, duration_s: float) -> int:
        """Keep the session's blocks in memory for a while (capped); returns how many blocks are pinned."""
        ...

    def end_session(self, session: SessionKey) -> int:
        """Drop the session's references; its blocks become ordinary, not deleted. Returns how many there were."""
        ...

    def stats(self) -> CacheStats:
        """The books."""
        ...
