"""Brings blocks of lower tiers up to memory, from the fastest tier that has them, as far as that pays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
import math
import time

from kv_agent_ros.kvcache.block import BlockSlot, EventKind, Tier
from kv_agent_ros.kvcache.books import CacheBooks
from kv_agent_ros.kvcache.demotion import Demoter
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock
from kv_agent_ros.kvcache.storage.tiered import BackingTier


@dataclass(kw_only=True, slots=True)
class HeldPrefix:
    """A lock on the path's prefix in memory that grows; whoever has it ends the lock that it holds last."""

    path: TokenPath
    epoch: int  # of the books, when it was taken
    lock: PathLock
    sources: list[tuple[Tier, int]]  # which tier the blocks came from, up to which block (exclusive)


@dataclass(kw_only=True, slots=True)
class _Load:
    """What came up so far: slots in path order, one checksum for each that is filled."""

    slots: tuple[BlockSlot, ...] = ()
    checksums: list[bytes] = field(default_factory=list)
    stored_bytes: int = 0


class Promoter:
    """Called without the lock of the books, by any thread."""

    def __init__(self, *, books: CacheBooks, demoter: Demoter, timer: Callable[[], float] = time.perf_counter) -> None:
        self._books = books
        self._demoter = demoter
        self._timer = timer
        self.load_s = 0.0  # guarded by the books

    def plan(self, path: TokenPath, num_held: int) -> list[tuple[Tier, int]]:
        """Which tier would serve up to which block (exclusive), after the first `num_held`; changes nothing."""
        plan = []
        for tier in self._books.backing:
            num_wanted = self._num_wanted(tier, path, num_held, tier.match(path))
            if num_wanted:
                num_held += num_wanted
                plan.append((tier.tier, num_held))
        return plan

    def may_bring(self, path: TokenPath, num_held: int) -> bool:
        """Whether promote() may find something; answers from memory."""
        if any(tier.is_shared and not tier.is_degraded for tier in self._books.backing):
            return num_held < path.num_blocks
        return bool(self.plan(path, num_held))

    def promote(self, held: HeldPrefix, limit_s: float = math.inf) -> None:
        """Add to a prefix what the tiers below have, fastest first. A tier that fails adds nothing.

        After `limit_s` no further block is begun, and no tier asked: whoever waits has patience for a part of the
        prefix, not for all.
        """
        ends_s = self._timer() + limit_s
        for tier in self._books.backing:
            if self._timer() >= ends_s:
                return
            if held.lock.num_blocks < held.path.num_blocks and not tier.is_degraded:
                tier.discover(held.path)
                self._promote_from(tier, held, ends_s)
                held.sources.append((tier.tier, held.lock.num_blocks))

    def _promote_from(self, tier: BackingTier, held: HeldPrefix, ends_s: float) -> None:
        path, num_held = held.path, held.lock.num_blocks
        found = tier.lock(path)
        load = _Load()
        try:
            num_wanted = self._num_wanted(tier, path, num_held, found.num_blocks)
            if num_wanted:
                keys = path.keys()[num_held : num_held + num_wanted]
                self._load(tier, keys, held, load, ends_s)
        finally:
            tier.unlock(found)
        self._forget_lost(tier, path, num_held, load)

    def _load(self, tier: BackingTier, keys: Sequence[bytes], held: HeldPrefix, load: _Load, ends_s: float) -> None:
        with self._books.owned():
            load.slots = self._books.dram.reserve(keys, held.path.block_bytes, self._demoter.make_room)
        started_s = self._timer()
        try:
            self._fill(tier, held.path, load, ends_s)
        finally:
            with self._books.owned():
                self._note_cost(tier, load, self._timer() - started_s)
                self._publish(held, load)

    def _num_wanted(self, tier: BackingTier, path: TokenPath, num_held: int, num_found: int) -> int:
        if num_found <= num_held:
            return 0
        sizes = tier.sizes(path.keys()[num_held:num_found])
        return self._books.costs.num_worth_loading(path.root, tier.tier, sizes, path.block_tokens)

    def _fill(self, tier: BackingTier, path: TokenPath, load: _Load, ends_s: float) -> None:
        """Read blocks until one is not to be had, or time is over."""
        slots = []
        for slot in load.slots:
            if self._timer() >= ends_s:
                break
            loaded = tier.load(slot.block_key, path.layout, self._books.dram.view(slot))
            if loaded is None:
                break
            slots.append(replace(slot, bits=loaded.bits) if loaded.bits != slot.bits else slot)
            load.checksums.append(loaded.checksum)
            load.stored_bytes += loaded.stored_bytes
        load.slots = (*slots, *load.slots[len(slots) :])

    def _note_cost(self, tier: BackingTier, load: _Load, duration_s: float) -> None:
        if load.slots:
            self.load_s += duration_s
            self._books.costs.note_load(tier.tier, load.stored_bytes, duration_s)

    def _publish(self, held: HeldPrefix, load: _Load) -> None:
        """Serve what was read, unless the cache was cleared meanwhile."""
        dram = self._books.dram
        if held.epoch != self._books.epoch or not load.checksums:
            dram.cancel(load.slots)
            return
        end = held.path.head(held.lock.num_blocks + len(load.checksums))
        added = dram.publish(end, load.slots, load.checksums)
        self._books.note_stored(EventKind.MOVED, end, len(added), Tier.DRAM)
        before, held.lock = held.lock, dram.hold(held.path)
        dram.unlock(before)
        self._demoter.keep_watermarks()

    def _forget_lost(self, tier: BackingTier, path: TokenPath, num_held: int, load: _Load) -> None:
        """What the tier has lost cannot be followed by anything; what it only failed to read may come back."""
        num_read = len(load.checksums)
        if num_read < len(load.slots) and not tier.has(load.slots[num_read].block_key):
            tier.cut(path, num_held + num_read)
            tier.sweep(0.0)
