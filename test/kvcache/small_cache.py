"""A cache small enough to overflow in a test, and an engine that writes bytes which can be recognised."""

from collections.abc import Callable, Sequence
import math
from pathlib import Path
import time

import numpy as np

from kv_agent_ros.kvcache.block import EventKind, KVEvent, KVNamespace, SessionKey, Tier
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.storage.base import BlockStore, ByteArray, checksum
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SegmentMap, SharedArena
from kv_agent_ros.kvcache.storage.tiered import WRITE_ALL, BackingTier, TierOptions
from kv_agent_ros.kvcache.write_policy import WHEN_FULL, Watermarks

NAMESPACE = KVNamespace(
    model='tiny', revision='1', dtype='float32', num_layers=1, num_kv_heads=1, head_dim=4, block_tokens=4
)
ROBOT_1 = SessionKey(robot_id='robot1', session_id='planner')
ROBOT_2 = SessionKey(robot_id='robot2', session_id='planner')
HEAD = list(range(16))  # 4 blocks


def content(key: bytes) -> ByteArray:
    """The bytes that the test engine computes for a block."""
    return np.frombuffer(key * 4, dtype=np.uint8)


def replay(events: Sequence[KVEvent]) -> dict[Tier, dict[bytes, bytes]]:
    """What each tier holds, key to parent, as one knows who only listens; no block may come before its parent."""
    tiers: dict[Tier, dict[bytes, bytes]] = {tier: {} for tier in Tier}
    for number, event in enumerate(events, 1):
        assert event.sequence == number
        if event.kind is EventKind.CLEARED:
            tiers = {tier: {} for tier in Tier}
        elif event.kind is EventKind.REMOVED:
            for key in event.block_keys:
                tiers[event.tier].pop(key, b'')  # a block that a reader keeps through a clear leaves twice
        else:
            parent = event.parent_key
            assert parent == b'' or parent in tiers[event.tier]
            for key in event.block_keys:
                assert key not in tiers[event.tier]
                tiers[event.tier][key], parent = parent, key
    return tiers


class Cache:
    """A manager with a clock that the test moves, and the engine's side of the protocol.

    Behind its memory are files, in a store that `wrap_store` may put into another one, and what `below` makes.
    """

    def __init__(
        self,
        dram_blocks: int,
        directory: Path,
        disk_bytes: int,
        *,
        wrap_store: Callable[[BlockStore], BlockStore] = lambda store: store,
        options: TierOptions = WRITE_ALL,
        below: Sequence[BackingTier] = (),
        watermarks: Watermarks = WHEN_FULL,
        prefill_tokens_per_s: float = 0.0,
        timer: Callable[[], float] = time.perf_counter,
        max_load_s: float = math.inf,
    ) -> None:
        self.now_s = 0.0
        self.events: list[KVEvent] = []
        self.disk = DiskStore.open(directory, disk_bytes)
        self.ssd = BackingTier.open(tier=Tier.SSD, store=wrap_store(self.disk), options=options, below=below)
        sessions = SessionIndex()
        arena = SharedArena.create(dram_blocks * NAMESPACE.block_bytes)
        self.manager = KVCacheManager(
            dram=DramTier(store=HostStore(arena), policy=SessionLruPolicy(sessions.is_referenced)),
            sessions=sessions,
            backing=(self.ssd, *below),
            lease_timeout_s=60.0,
            watermarks=watermarks,
            prefill_tokens_per_s=prefill_tokens_per_s,
            clock=lambda: self.now_s,
            timer=timer,
            max_load_s=max_load_s,
            listener=self.events.append,
        )
        self.segments = SegmentMap()

    def write(self, tokens: Sequence[int], session: SessionKey = ROBOT_1, namespace: KVNamespace = NAMESPACE) -> int:
        """Compute and publish all full blocks; returns how many became visible."""
        lease = self.manager.reserve(namespace, session, np.asarray(tokens, np.int32))
        checksums = []
        for slot in lease.slots:
            view = self.segments.slot(slot)
            view[:] = content(slot.block_key)
            checksums.append(checksum(view))
        return self.manager.commit(lease.lease_id, checksums)

    def read(self, tokens: Sequence[int], session: SessionKey = ROBOT_1, namespace: KVNamespace = NAMESPACE) -> int:
        """Acquire, verify every byte, release; returns the matched tokens."""
        lease = self.manager.acquire(namespace, session, np.asarray(tokens, np.int32))
        for slot in lease.slots:
            view = self.segments.slot(slot)
            assert checksum(view) == slot.checksum
            assert view.tobytes() == content(slot.block_key).tobytes()
        self.manager.release(lease.lease_id)
        return lease.matched_tokens

    @property
    def num_in_dram(self) -> int:
        return self.manager.stats().tiers[0].num_blocks

    def flush(self) -> None:
        assert self.manager.flush(30.0)

    def drop_dram(self) -> None:
        """Evict everything that no lock holds from DRAM, also what must be copied down first."""
        for _ in range(100):
            self.manager.evict(1 << 40)
            assert self.ssd.flush(30.0)
            if not self.manager.stats().tiers[0].evictable_bytes:
                return
        raise AssertionError('blocks come back to be copied for ever')

    def close(self) -> None:
        self.manager.close()
