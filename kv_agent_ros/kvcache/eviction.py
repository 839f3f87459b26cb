"""Who goes first when a tier is full.

A policy ranks blocks; the tree asks only about the last block of an unlocked leaf, so that no policy can evict a locked
block or leave a suffix without its prefix.
"""

from collections.abc import Callable
from typing import Protocol

Rank = tuple[int, int]


class EvictionPolicy(Protocol):
    """An order over blocks."""

    def rank(self, key: bytes, last_used: int) -> Rank:
        """Lower goes first. `last_used` counts uses of the tree, higher is later.

        A rank may rise at any time; after something that lowers ranks, the owner calls `RadixPrefixCache.reorder()`.
        """
        ...


class LruPolicy:
    """Least recently used first."""

    def rank(self, key: bytes, last_used: int) -> Rank:
        return (0, last_used)


class SessionLruPolicy:
    """Blocks that no open session refers to first, least recently used first within both groups.

    The references are soft: when everything is referenced, eviction still makes progress.
    """

    def __init__(self, is_referenced: Callable[[bytes], bool]) -> None:
        self._is_referenced = is_referenced

    def rank(self, key: bytes, last_used: int) -> Rank:
        return (int(self._is_referenced(key)), last_used)
