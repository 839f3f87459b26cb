"""Who goes first when a tier is full.

A policy ranks blocks; the tree asks only about the last block of an unlocked leaf, so that no policy can evict a locked
block or leave a suffix without its prefix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Rank = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockUse:
    """What a tree knows about the use of one block. Its clock ticks once per path that is locked or inserted."""

    last_used: int  # tick; at least that of every block after it
    first_used: int  # tick of its insertion
    num_uses: int  # its insertion and the locks since, those before an eviction included while a ghost remembers
    depth: int  # blocks before it on its path
    priority: int  # the highest that a path through it was inserted with
    find_key: Callable[[], bytes]

    @property
    def key(self) -> bytes:
        """Hashed when asked for."""
        return self.find_key()


class EvictionPolicy(Protocol):
    """An order over blocks."""

    def rank(self, use: BlockUse) -> Rank:
        """Lower goes first.

        A rank may rise at any time; after something that lowers ranks, the owner calls `RadixPrefixCache.reorder()`.
        """
        ...


class LruPolicy:
    """Least recently used first."""

    def rank(self, use: BlockUse) -> Rank:
        return (0, use.last_used)


class SessionLruPolicy:
    """Blocks that no open session refers to first, least recently used first within both groups.

    The references are soft: when everything is referenced, eviction still makes progress.
    """

    def __init__(self, is_referenced: Callable[[bytes], bool]) -> None:
        self._is_referenced = is_referenced

    def rank(self, use: BlockUse) -> Rank:
        return (int(self._is_referenced(use.key)), use.last_used)


class GhostList:
    """How often the blocks that were evicted last had been used, by key; a capacity of 0 remembers nothing."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_uses: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._num_uses)

    def remember(self, key: bytes, num_uses: int) -> None:
        """A block was evicted; the one that left longest ago is forgotten for it."""
        self._num_uses[key] = num_uses
        if len(self._num_uses) > self._capacity:
            del self._num_uses[next(iter(self._num_uses))]

    def take(self, key: bytes) -> int:
        """A block is back: how often it had been used, 0 for an unknown one."""
        return self._num_uses.pop(key, 0)
