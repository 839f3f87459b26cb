"""Many threads, three tiers, one of which hangs and fails: nothing wrong or old is served, nothing leaks or waits long.

The long run: pytest -m slow test/kvcache/test_manager_stress.py
"""

from collections.abc import Callable
from pathlib import Path
import random
import threading
import time

import numpy as np
import pytest
from small_cache import NAMESPACE, Cache, replay

from kv_agent_ros.kvcache.base import PrefetchPolicy
from kv_agent_ros.kvcache.block import SessionKey, Tier, TokenArray, block_keys
from kv_agent_ros.kvcache.storage.base import BlockStore, ByteArray, checksum
from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore, GuardLimits
from kv_agent_ros.kvcache.storage.tiered import BackingTier, Sharing, TierOptions
from kv_agent_ros.kvcache.write_policy import Watermarks, WritePolicy

SESSIONS = [SessionKey(robot_id=f'robot{number}', session_id='planner') for number in range(6)]
LIMITS = GuardLimits(deadline_s=0.05, scan_deadline_s=0.1, retry_s=0.05)
DRAM_BLOCKS, NUM_THREADS, TURNS = 12, 5, 150


def guarded(store: BlockStore) -> BlockStore:
    return GuardedStore(store, LIMITS)


class Crowd:
    """Engines of different weights, one after the other: a block holds its key and the version that computed it."""

    def __init__(self, cache: Cache, device: FakeStore) -> None:
        self.cache, self.manager, self.device = cache, cache.manager, device
        self.version = self.cleared = 1
        self.clearing = threading.Lock()
        self.faults: list[str] = []
        self.num_served = 0

    def work(self, seed: int) -> None:
        """One thread; whatever it finds or raises is a fault."""
        chance = random.Random(seed)
        acts: list[Callable[[random.Random], object]] = [self.write] * 8 + [self.read] * 12 + [self.change] * 6
        for _ in range(TURNS):
            start_s = time.monotonic()
            try:
                chance.choice(acts)(chance)
            except Exception as error:  # of a thread: they are the result
                self.faults.append(repr(error))
            if time.monotonic() - start_s > 10.0:
                self.faults.append('somebody waited too long')

    def write(self, chance: random.Random) -> None:
        lease = self.manager.reserve(NAMESPACE, chance.choice(SESSIONS), prompt(chance))
        blocks = [content(slot.block_key, self.version) for slot in lease.slots]
        for slot, block in zip(lease.slots, blocks, strict=True):
            self.cache.segments.slot(slot)[:] = block
        if blocks and chance.random() < 0.05:
            self.cache.segments.slot(lease.slots[-1])[:] = 0  # broken, under the right checksum
        self.manager.commit(lease.lease_id, [checksum(block) for block in blocks])

    def read(self, chance: random.Random) -> None:
        oldest, tokens = self.cleared, prompt(chance)
        lease = self.manager.acquire(NAMESPACE, chance.choice(SESSIONS), tokens)
        for index, (slot, key) in enumerate(zip(lease.slots, block_keys(NAMESPACE, tokens), strict=False)):
            block = self.cache.segments.slot(slot)
            if checksum(block) != slot.checksum:
                self.manager.discard(lease.lease_id, index)
                break
            if block[:96].tobytes() != key * 3 or block[96:].view(np.int64)[0] < oldest:
                self.faults.append(f'wrong or old block from {slot.tier}')
            self.num_served += 1
        self.manager.release(lease.lease_id)

    def change(self, chance: random.Random) -> None:
        one, other = chance.choice(SESSIONS), chance.choice(SESSIONS)
        acts: list[Callable[[], object]] = [
            lambda: self.manager.prefetch(NAMESPACE, one, prompt(chance), chance.choice(list(PrefetchPolicy)), 0.01),
            lambda: self.manager.fork(one, other),
            lambda: self.manager.pin(one, 0.01),
            lambda: self.manager.end_session(one),
            lambda: self.manager.evict(4 * NAMESPACE.block_bytes),
            self.check_caps,
            self.disturb,
            self.clear,
        ]
        chance.choices(acts, weights=[4, 4, 4, 4, 4, 4, 4, 1])[0]()

    def check_caps(self) -> None:
        stats = self.manager.stats()
        for tier in stats.tiers:
            if not 0 <= tier.evictable_bytes <= tier.used_bytes <= tier.capacity_bytes:
                self.faults.append(f'books of {tier}')
        if stats.cached_tokens > stats.prompt_tokens:
            self.faults.append('more tokens served than asked for')

    def disturb(self) -> None:
        """The third tier hangs or fails for some turns of the others."""
        flip = self.device.works.clear if self.device.works.is_set() else self.device.works.set
        flip()
        self.device.is_failing = not self.device.is_failing

    def clear(self) -> None:
        """The weights change."""
        with self.clearing:
            self.version += 1
            self.manager.clear()
            self.cleared = self.version


def content(key: bytes, version: int) -> ByteArray:
    return np.frombuffer(key * 3 + np.full(4, version, np.int64).tobytes(), np.uint8)


def prompt(chance: random.Random) -> TokenArray:
    """Some of 3 + 9 + 27 + ... blocks, far more than fit."""
    return np.repeat(np.asarray([chance.randrange(3) for _ in range(chance.randint(1, 6))], np.int32), 4)


def run(directory: Path, policy: WritePolicy, sharing: Sharing, seed: int) -> None:
    device = FakeStore(40 * NAMESPACE.block_bytes)
    far = BackingTier.open(
        tier=Tier.REMOTE, store=guarded(device), options=TierOptions(write_policy=policy, sharing=sharing)
    )
    options = TierOptions(write_policy=policy)
    marks = Watermarks(high=0.9, low=0.6)
    cache = Cache(DRAM_BLOCKS, directory, 24 * 4096, options=options, below=(far,), watermarks=marks)
    crowd = Crowd(cache, device)
    threads = [threading.Thread(target=crowd.work, args=(seed + n,), daemon=True) for n in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
        assert not thread.is_alive()
    device.works.set()
    device.is_failing = False
    cache.now_s += 1000.0  # pins end
    cache.manager.flush(10.0)
    for tier in (cache.ssd, far):
        assert tier.flush(30.0)
    stats = cache.manager.stats()
    assert crowd.faults == []
    assert crowd.num_served > TURNS
    assert (cache.manager.num_locks, cache.manager.num_reserved_slots, stats.num_leases) == (0, 0, 0)
    assert stats.num_blocks == len(set().union(*replay(cache.events).values()))
    cache.manager.check_integrity()
    cache.close()


@pytest.mark.parametrize('sharing', Sharing)
@pytest.mark.parametrize('policy', WritePolicy)
def test_crowd_over_a_tier_that_hangs_and_fails(tmp_path: Path, policy: WritePolicy, sharing: Sharing) -> None:
    run(tmp_path / 'kv', policy, sharing, 1)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(100, 1100, 100))
def test_other_crowds_over_a_tier_that_hangs_and_fails(tmp_path: Path, seed: int) -> None:
    for policy in WritePolicy:
        for sharing in Sharing:
            run(tmp_path / f'{policy.value}-{sharing.value}', policy, sharing, seed)
