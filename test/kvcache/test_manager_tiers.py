"""The manager over DRAM and disk: what leaves memory comes back, what is wrong does not."""

from collections.abc import Callable

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_1, ROBOT_2, Cache, content

from kv_agent_ros.kvcache.block import Tier
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, checksum
from kv_agent_ros.kvcache.storage.tiered import TierOptions


def test_evicted_blocks_come_back_from_disk(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    assert cache.num_in_dram == 0
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    assert [slot.tier for slot in lease.slots] == [Tier.SSD] * 4
    cache.manager.release(lease.lease_id)
    assert cache.read([*HEAD, 99]) == 16
    assert cache.manager.stats().tiers[1].num_hits == 4


def test_prefix_is_cut_where_dram_has_no_room_for_promotion(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=4)
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    held = cache.manager.reserve(NAMESPACE, ROBOT_2, np.arange(100, 108, dtype=np.int32))
    assert cache.read([*HEAD, 99]) == 8
    cache.manager.release(held.lease_id)
    assert cache.read([*HEAD, 99]) == 16


def test_discard_removes_a_bad_block_and_its_suffix_from_every_tier(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    cache.segments.slot(lease.slots[2])[:] = 255
    cache.manager.discard(lease.lease_id, 2)
    assert cache.read([*HEAD, 99]) == 8
    stats = cache.manager.stats()
    assert [tier.num_blocks for tier in stats.tiers] == [2, 2]
    assert (stats.num_checksum_failures, stats.num_leases) == (1, 0)


@pytest.mark.parametrize('num_good_blocks', [-2, -1, 0, 3, 4, 1000])
def test_reader_that_is_wrong_about_a_checksum_cuts_nothing(cache: Cache, num_good_blocks: int) -> None:
    cache.write(HEAD)
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    cache.manager.discard(lease.lease_id, num_good_blocks)
    cache.flush()
    assert cache.read([*HEAD, 99]) == 16
    assert (cache.manager.stats().num_checksum_failures, cache.manager.num_locks) == (0, 0)


def test_reader_whose_lease_has_ended_sees_other_bytes_and_cuts_nothing(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=4)
    cache.write(HEAD)
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    cache.flush()
    cache.now_s = 60.0
    cache.write(list(range(100, 116)), ROBOT_2)
    assert any(checksum(cache.segments.slot(slot)) != slot.checksum for slot in lease.slots)
    cache.manager.discard(lease.lease_id, 0)
    assert cache.read([*range(100, 116), 0]) == 16
    cache.flush()
    assert cache.read([*HEAD, 99]) == 16


def test_bytes_that_change_before_they_reach_the_disk_are_never_served(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    for slot in lease.slots:
        cache.segments.slot(slot)[:] = content(slot.block_key)
    wrong = [checksum(content(slot.block_key)) for slot in lease.slots[:3]] + [bytes(16)]
    cache.manager.commit(lease.lease_id, wrong)
    cache.flush()
    assert cache.read([*HEAD, 99]) == 12
    assert cache.manager.stats().num_checksum_failures == 1


def test_clear_forgets_every_tier_and_ends_writers(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    writer = cache.manager.reserve(NAMESPACE, ROBOT_1, np.arange(100, 116, dtype=np.int32))
    reader = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    cache.manager.clear()
    assert cache.read([*HEAD, 99]) == 0
    assert cache.manager.commit(writer.lease_id, [bytes(16)] * 4) == 0
    assert cache.segments.slot(reader.slots[0]).tobytes() == content(reader.slots[0].block_key).tobytes()
    cache.manager.release(reader.lease_id)
    assert [tier.used_bytes for tier in cache.manager.stats().tiers] == [0, 0]
    assert cache.write(HEAD) == 4
    assert cache.read([*HEAD, 99]) == 16


def test_transfers_that_find_the_queue_full_leave_no_lock(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(options=TierOptions(max_queued_transfers=0))
    cache.write(HEAD)
    assert cache.manager.num_locks == 0
    assert cache.manager.stats().tiers[1].num_errors == 1


class ClearedWhileReading:
    """A store whose owner's cache is cleared in the middle of a read."""

    def __init__(self, inner: BlockStore) -> None:
        self._inner = inner
        self.on_read: Callable[[], None] = lambda: None
        self.put, self.delete, self.size_bytes = inner.put, inner.delete, inner.size_bytes
        self.records, self.usage, self.close = inner.records, inner.usage, inner.close

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        record = self._inner.get(key, out)
        self.on_read()
        return record


def test_blocks_that_were_being_promoted_during_clear_are_not_served(open_cache: Callable[..., Cache]) -> None:
    stores: list[ClearedWhileReading] = []

    def wrap(inner: BlockStore) -> BlockStore:
        stores.append(ClearedWhileReading(inner))
        return stores[-1]

    cache = open_cache(wrap_store=wrap)
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    stores[0].on_read = cache.manager.clear
    assert cache.read([*HEAD, 99]) == 0
    cache.flush()  # deleting from the disk waits for its reader
    assert [tier.used_bytes for tier in cache.manager.stats().tiers] == [0, 0]
    cache.manager.check_integrity()


def test_turn_that_a_defect_ends_leaves_no_lock_and_no_slot(open_cache: Callable[..., Cache]) -> None:
    stores: list[ClearedWhileReading] = []

    def wrap(inner: BlockStore) -> BlockStore:
        stores.append(ClearedWhileReading(inner))
        return stores[-1]

    def fail() -> None:
        raise ZeroDivisionError('a defect of the store')

    cache = open_cache(wrap_store=wrap)
    cache.write(HEAD)
    cache.flush()
    cache.manager.evict(2 * NAMESPACE.block_bytes)
    stores[0].on_read = fail
    with pytest.raises(ZeroDivisionError):
        cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    assert (cache.manager.num_locks, cache.manager.num_reserved_slots) == (0, 0)
    cache.manager.check_integrity()
    stores[0].on_read = lambda: None
    assert cache.read([*HEAD, 99]) == 16
