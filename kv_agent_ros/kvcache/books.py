"""What one lock guards: the blocks in memory, who may touch them, and who is told.

The front door, promotion, demotion and prefetch share one of these. They call lower tiers and listeners without it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import threading

from kv_agent_ros.kvcache.block import EventKind, SessionKey, Tier
from kv_agent_ros.kvcache.cost_model import CostModel
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.events import NOBODY, EventListener, EventLog
from kv_agent_ros.kvcache.leases import HeldLease, LeaseBook
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.pins import PinBoard
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.tiered import BackingTier

_BIT = {tier: 1 << number for number, tier in enumerate(Tier)}


class CacheBooks:
    """Change them within owned() only."""

    def __init__(
        self,
        *,
        dram: DramTier,
        sessions: SessionIndex,
        backing: Sequence[BackingTier],
        leases: LeaseBook,
        costs: CostModel,
        clock: Callable[[], float],
        listener: EventListener,
    ) -> None:
        self.dram = dram
        self.sessions = sessions
        self.backing = tuple(backing)
        self.leases = leases
        self.costs = costs
        self.pins = PinBoard(dram)
        self.clock = clock
        self.epoch = 0  # counts clear()
        self._events = EventLog(listener)
        self._lock = threading.Lock()
        self._present: dict[bytes, int] = {}  # key -> bits of the tiers that have the block, as they told
        self._settle()

    @property
    def num_blocks(self) -> int:
        """Blocks that at least one tier has, each counted once."""
        return len(self._present)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """The lock, with what timed out ended before and what left the cache made known after."""
        with self._lock:
            self._end_expired(self.clock())
            try:
                yield
            finally:
                self._settle()
        self._events.deliver()

    def note_stored(
        self, kind: EventKind, path: TokenPath, num_blocks: int, tier: Tier, session: SessionKey = NOBODY
    ) -> None:
        """A tier has the last `num_blocks` blocks of a path now."""
        self.note_removed(self.dram.take_removed(), Tier.DRAM)  # perhaps the same blocks, just before
        for key in path.keys()[path.num_blocks - num_blocks :]:
            self._present[key] = self._present.get(key, 0) | _BIT[tier]
        self._events.note_stored(kind, path, num_blocks, tier, session)

    def note_removed(self, keys: Sequence[bytes], tier: Tier) -> None:
        """A tier does not have these blocks any more. Sessions refer to a block as long as any tier has it."""
        self._events.note_removed(keys, tier)
        for key in keys:
            self._present[key] = self._present.get(key, 0) & ~_BIT[tier]
        self._forget([key for key in keys if not self._present[key]])

    def note_cleared(self) -> None:
        """No tier has anything, except what readers still hold in memory."""
        self._forget(list(self._present))
        self._events.note_cleared()

    def end_session(self, session: SessionKey) -> int:
        """Drop the session's pin and references; returns how many references there were."""
        self.pins.unpin(session)
        num_blocks = self.sessions.end(session)
        if num_blocks:
            self.dram.reorder()
        return num_blocks

    def end_lease(self, lease: HeldLease) -> None:
        """Its holder does not touch its blocks any more."""
        self.dram.cancel(lease.slots)
        self.dram.unlock(lease.lock)

    def _end_expired(self, at_s: float) -> None:
        for lease in self.leases.take_expired(at_s):
            self.dram.unlock(lease.lock)
        self.dram.cancel(self.leases.take_rested(at_s))
        self.pins.end_expired(at_s)

    def _forget(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._present.pop(key, None)
        self.sessions.forget_blocks(keys)

    def _settle(self) -> None:
        for session in self.sessions.drop_surplus():
            self.pins.unpin(session)
        self.note_removed(self.dram.take_removed(), Tier.DRAM)
        for tier in self.backing:
            for change in tier.take_changes():
                if change.kind is EventKind.REMOVED:
                    self.note_removed(change.keys, change.tier)
                else:
                    self.note_stored(change.kind, change.path, len(change.keys), change.tier)
