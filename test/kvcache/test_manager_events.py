"""Whoever follows the events knows what every tier holds, and the books count the same blocks."""

from collections.abc import Callable, Sequence

import numpy as np
from small_cache import HEAD, NAMESPACE, ROBOT_1, ROBOT_2, Cache, content, replay

from kv_agent_ros.kvcache.block import Tier, block_keys
from kv_agent_ros.kvcache.storage.base import BlockStore, checksum
from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore, GuardLimits

OpenCache = Callable[..., Cache]
KEYS = block_keys(NAMESPACE, HEAD)


def held(cache: Cache, keys: Sequence[bytes] = KEYS) -> tuple[int, int]:
    """How many of the keys memory and disk hold, as the events tell."""
    tiers = replay(cache.events)
    return sum(key in tiers[Tier.DRAM] for key in keys), sum(key in tiers[Tier.SSD] for key in keys)


def test_block_that_a_hanging_tier_cannot_delete_yet_is_not_counted_and_not_referenced(open_cache: OpenCache) -> None:
    fake = FakeStore(1 << 20)

    def hanging(store: BlockStore) -> BlockStore:
        return GuardedStore(fake, GuardLimits(deadline_s=0.05))

    cache = open_cache(wrap_store=hanging)
    cache.write(HEAD)
    cache.flush()
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    cache.segments.slot(lease.slots[0])[:] = 255
    fake.works.clear()
    cache.manager.discard(lease.lease_id, 0)
    stats = cache.manager.stats()
    fake.works.set()
    assert (stats.num_blocks, stats.sessions[0].num_blocks) == (0, 0)
    assert held(cache) == (0, 0)


def test_block_that_leaves_and_comes_back_within_one_call_is_told_in_that_order(cache: Cache) -> None:
    tokens = np.array([*HEAD, 99], np.int32)
    cache.write(HEAD)
    cache.flush()
    reader = cache.manager.acquire(NAMESPACE, ROBOT_1, tokens)
    bad = cache.manager.acquire(NAMESPACE, ROBOT_2, tokens)
    cache.segments.slot(bad.slots[0])[:] = 255
    cache.manager.discard(bad.lease_id, 0)  # the blocks stay for the reader
    assert cache.read([*HEAD, 99]) == 0
    cache.now_s = 30.0
    writer = cache.manager.reserve(NAMESPACE, ROBOT_2, np.array(HEAD, np.int32))
    for slot in writer.slots:
        cache.segments.slot(slot)[:] = content(slot.block_key)
    cache.now_s = 60.0  # the reader's time is over with the commit
    assert cache.manager.commit(writer.lease_id, [checksum(content(key)) for key in KEYS]) == 4
    cache.flush()
    assert len(reader.slots) == 4
    assert held(cache) == (4, 4)
    stats = cache.manager.stats()
    assert (stats.num_blocks, stats.sessions[-1].num_blocks) == (4, 4)


def test_blocks_that_a_restart_finds_are_told_before_what_follows_them(open_cache: OpenCache) -> None:
    first = open_cache()
    first.write(HEAD)
    first.close()
    second = open_cache()
    assert second.manager.stats().num_blocks == 4
    assert held(second) == (0, 4)
    longer = [*HEAD, *range(50, 54)]
    second.write(longer)
    second.flush()
    assert held(second, block_keys(NAMESPACE, longer)) == (5, 5)
