"""The door through which an engine uses the cache, in this process or another.

`KVCacheManager` is one implementation (direct), the ROS client another. Bytes never pass through it: leases say where
they are, `storage.host.SegmentMap` maps them.
"""

from collections.abc import Sequence
from typing import Protocol

from kv_agent_ros.kvcache.block import CacheStats, KVNamespace, PrefixLease, SessionKey, TokenArray, WriteLease


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

        That block and everything after it leave every tier.
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
