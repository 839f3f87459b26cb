"""What goes down from memory, and when: at commit, at the second use, or before it leaves.

A block that leaves memory is copied first where the policy of the first tier below asks for it. While it is copied its
path is locked, so that it stays where it is and is still served. Copies that are under way hold half of memory at most,
and a tier that cannot take them loses what leaves, so that nobody waits for a slow disk to get a slot.
"""

from functools import partial
import time

from kv_agent_ros.kvcache.block import Tier
from kv_agent_ros.kvcache.books import CacheBooks
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult
from kv_agent_ros.kvcache.storage.tiered import BackingTier
from kv_agent_ros.kvcache.storage.transfer import Transfer, TransferResult
from kv_agent_ros.kvcache.write_policy import Watermarks, WritePolicy

_MAX_FRACTION = 0.5  # of memory in copies under way, one copy excepted
_MAX_STEPS = 256  # blocks that leave within one call because of the watermarks


class Demoter:
    """All but flush() and the transfers' ends is called within `books.owned()`."""

    def __init__(self, *, books: CacheBooks, watermarks: Watermarks) -> None:
        self._books = books
        self._dram = books.dram
        self._watermarks = watermarks
        self._in_flight: dict[tuple[Tier, bytes], int] = {}  # tier and last key of a path -> bytes
        self._hopeless: set[bytes] = set()  # blocks that a healthy tier did not take

    def note_commit(self, path: TokenPath) -> None:
        """A path was published."""
        for tier in self._books.backing:
            if tier.write_policy is WritePolicy.WRITE_THROUGH:
                self._copy(path, tier)

    def note_hit(self, path: TokenPath) -> None:
        """A path in memory was used again."""
        for tier in self._books.backing:
            if tier.write_policy is WritePolicy.SELECTIVE and path.num_blocks and not tier.has(path.keys()[-1]):
                self._copy(path, tier)

    def make_room(self) -> bool:
        """Have one block leave memory at once, be it lost; False when none can."""
        while key := self._dram.victim_key():
            if not (self._must_copy(key) and self._copy(self._dram.victim(), self._books.backing[0])):
                return self._let_go(key)
        return False

    def retire(self) -> bool:
        """Have one block leave memory, unless it would be lost; False when none can right now."""
        while key := self._dram.victim_key():
            if not self._must_copy(key):
                return self._let_go(key)
            if not self._copy(self._dram.victim(), self._books.backing[0]):
                return False
        return False

    def keep_watermarks(self) -> None:
        """Let blocks leave memory when it is too full, some at a time."""
        capacity = self._dram.capacity_bytes
        if self._dram.used_bytes <= self._watermarks.high * capacity:
            return
        for _ in range(_MAX_STEPS):
            staying_bytes = self._dram.used_bytes - sum(self._in_flight.values())
            if staying_bytes <= self._watermarks.low * capacity or not self.retire():
                return

    def clear(self) -> None:
        """Forget what is under way, after the books' epoch has changed."""
        self._hopeless.clear()
        for tier in self._books.backing:
            for transfer in tier.clear():
                self._end(tier, transfer)

    def flush(self, timeout_s: float) -> bool:
        """Copy once all that its policy lets survive; False when that takes longer or a tier refuses."""
        end_s = time.monotonic() + timeout_s
        tried: set[tuple[Tier, bytes]] = set()
        while True:
            with self._books.owned():
                num_left = self._copy_all(tried)
                is_idle = not self._in_flight
            if not all(tier.flush(max(0.0, end_s - time.monotonic())) for tier in self._books.backing):
                return False
            if is_idle or time.monotonic() >= end_s:
                return not num_left

    def _copy_all(self, tried: set[tuple[Tier, bytes]]) -> int:
        """Queue copies of what should survive, as many as may be under way; how many paths are left for later."""
        num_left = 0
        for index, tier in enumerate(self._books.backing):
            if tier.write_policy is WritePolicy.WRITE_THROUGH or (not index and tier.write_policy.saves_leavers):
                here_or_below = self._books.backing[index:]
                for path in self._dram.leaves():
                    key = path.keys()[-1]
                    is_safe = (tier.tier, key) in tried or any(lower.has(key) for lower in here_or_below)
                    if is_safe or self._copy(path, tier):
                        tried.add((tier.tier, key))
                    else:
                        num_left += 1
        return num_left

    def _must_copy(self, key: bytes) -> bool:
        """Whether a block should be in a lower tier before it leaves, and is in none."""
        if not self._books.backing or key in self._hopeless:
            return False
        first = self._books.backing[0]
        is_below = any(tier.has(key) for tier in self._books.backing)
        return first.write_policy.saves_leavers and not is_below and not first.is_degraded

    def _let_go(self, key: bytes) -> bool:
        self._hopeless.discard(key)
        return self._dram.evict(1) > 0

    def _copy(self, path: TokenPath, tier: BackingTier) -> bool:
        """Whether a copy of what the tier lacks is under way; not when it lacks nothing or cannot take it now."""
        lock = self._dram.hold(path)
        name = (tier.tier, lock.keys[-1] if lock.keys else b'')
        num_bytes = (lock.num_blocks - tier.match(path)) * path.block_bytes
        has_room = not self._in_flight or num_bytes + sum(self._in_flight.values()) <= self._max_bytes
        if num_bytes > 0 and has_room and name not in self._in_flight:
            done = partial(self._finish, tier, self._books.epoch)
            head = path.head(lock.num_blocks)
            if tier.submit(Transfer(path=head, keys=lock.keys, lock=lock, read=self._read, done=done)):
                self._in_flight[name] = num_bytes
                return True
        self._dram.unlock(lock)
        return name in self._in_flight

    @property
    def _max_bytes(self) -> float:
        return self._dram.capacity_bytes * _MAX_FRACTION

    def _read(self, key: bytes) -> tuple[BlockRecord, ByteArray]:
        with self._books.owned():
            return self._dram.read(key)

    def _finish(self, tier: BackingTier, epoch: int, transfer: Transfer, result: TransferResult) -> None:
        with self._books.owned():
            if epoch != self._books.epoch:
                pass  # the cache was cleared: what happened to it says nothing about what is there now
            elif result.last is PutResult.CORRUPT:
                self._dram.cut(transfer.path, result.num_present)
            elif result.last is not PutResult.STORED and not tier.is_degraded:
                self._hopeless.update(transfer.keys[result.num_present :])
            self._end(tier, transfer)
            self.keep_watermarks()

    def _end(self, tier: BackingTier, transfer: Transfer) -> None:
        self._in_flight.pop((tier.tier, transfer.keys[-1]), 0)
        self._dram.unlock(transfer.lock)
