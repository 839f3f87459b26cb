"""Who goes first when a tier is full.

A policy ranks blocks; the tree asks only about the last block of an unlocked leaf, so that no policy can evict a locked
block or leave a suffix without its prefix. The default, which learns from the uses, is in hit_density.py.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Rank = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockUse:
    """What a tree knows about the use of one block. Its clock ticks once per path that is locked or inserted."""

    last_used: int  # tick; at least that of every block after it
    first_used: int  # tick of its insertion
    num_uses: int  # its insertion and the locks since, those before an eviction included while a ghost remembers
    depth: int  # blocks before it on its path
    priority: int  # the highest that a path through it was inserted with
    is_end: bool  # the path that used it last ended with it
    now: int  # tick
    find_key: Callable[[], bytes]

    @property
    def key(self) -> bytes:
        """Hashed when asked for."""
        return self.find_key()


class EvictionPolicy(Protocol):
    """An order over blocks."""

    def rank(self, use: BlockUse) -> Rank:
        """Lower goes first.

        A rank may change at any time: that it rose is noticed before the block goes, that it fell when the queue is
        ranked again, some evictions later or at once with `RadixPrefixCache.reorder()`.
        """
        ...


class LruPolicy:
    """Least recently used first."""

    def rank(self, use: BlockUse) -> Rank:
        return (0, use.last_used)


class AgedLfuPolicy:
    """Least often used first, where every `half_life` ticks without use halve the number. After TinyLFU (2017)."""

    def __init__(self, half_life: int = 4096) -> None:
        self._half_life = half_life

    def rank(self, use: BlockUse) -> Rank:
        return (use.num_uses >> (use.now - use.last_used) // self._half_life, use.last_used)


class SlruPolicy:
    """Blocks that were never used again first, least recently used first within both groups. After SLRU (1994)."""

    def rank(self, use: BlockUse) -> Rank:
        return (int(use.num_uses > 1), use.last_used)


class PriorityPolicy:
    """Lowest priority first, least recently used first within one priority."""

    def rank(self, use: BlockUse) -> Rank:
        return (use.priority, use.last_used)


class TtlPolicy:
    """Blocks that were not used for `max_age` ticks first, those of low priority before; the others after them."""

    def __init__(self, max_age: int) -> None:
        self._max_age = max_age

    def rank(self, use: BlockUse) -> Rank:
        is_alive = use.now - use.last_used <= self._max_age
        return (int(is_alive), 0 if is_alive else use.priority, use.last_used)


class SessionsLast:
    """Blocks that no open session refers to first, then those of the fewest sessions; within both another policy.

    The references are soft: when everything is referenced, eviction still makes progress.
    """

    def __init__(self, num_references: Callable[[bytes], int], policy: EvictionPolicy) -> None:
        self._num_references = num_references
        self._policy = policy

    def rank(self, use: BlockUse) -> Rank:
        return (self._num_references(use.key), *self._policy.rank(use))


class SessionLruPolicy:
    """Blocks that no open session refers to first, least recently used first within both groups.

    The references are soft: when everything is referenced, eviction still makes progress.
    """

    def __init__(self, is_referenced: Callable[[bytes], bool]) -> None:
        self._is_referenced = is_referenced

    def rank(self, use: BlockUse) -> Rank:
        return (int(self._is_referenced(use.key)), use.last_used)


@dataclass(frozen=True, slots=True)
class PastUse:
    """What is remembered of a block's last use, also after its eviction."""

    num_uses: int
    last_used: int
    is_end: bool = False


NEVER_USED = PastUse(0, 0)


class UseObserver(Protocol):
    """Who learns from the uses of blocks."""

    def used(self, before: PastUse, after: PastUse, num_blocks: int) -> None:
        """So many blocks in a row were used alike; `is_end` is meant for the last one of them.

        `before.num_uses` is 0 for blocks that nothing is known about; when it did not change, they only got younger.
        """
        ...


class GhostList:
    """How the blocks that were evicted last had been used, by key; a capacity of 0 remembers nothing."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._past: OrderedDict[bytes, PastUse] = OrderedDict()  # a dict is slow where its first entries left

    def __len__(self) -> int:
        return len(self._past)

    def remember(self, key: bytes, past: PastUse) -> None:
        """A block was evicted; the one that left longest ago is forgotten for it."""
        self._past[key] = past
        if len(self._past) > self._capacity:
            self._past.popitem(last=False)

    def take(self, key: bytes) -> PastUse:
        """A block is back: how it had been used, NEVER_USED for an unknown one."""
        return self._past.pop(key, NEVER_USED)
