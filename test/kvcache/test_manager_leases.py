"""Leases end once: by release, commit, discard or their own time-out."""

from collections.abc import Callable
import contextlib
from dataclasses import replace

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_1, Cache, content

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import SessionKey
from kv_agent_ros.kvcache.storage.base import checksum


def test_release_twice_and_of_unknown_ids_is_harmless(cache: Cache) -> None:
    cache.write(HEAD)
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.manager.release(lease.lease_id)
    cache.manager.release(lease.lease_id)
    cache.manager.release('no such lease')
    cache.flush()
    assert cache.manager.num_locks == 0


def test_released_write_lease_gives_every_slot_back(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.manager.release(lease.lease_id)
    assert cache.manager.commit(lease.lease_id, []) == 0
    assert cache.manager.stats().tiers[0].used_bytes == 0


def test_expired_write_lease_publishes_nothing_and_frees_its_slots(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.now_s = 60.0
    assert cache.manager.commit(lease.lease_id, [bytes(16)] * 4) == 0
    assert cache.manager.stats().num_expired_leases == 1
    assert cache.manager.stats().tiers[0].used_bytes == 0


def test_expired_read_lease_unlocks_its_prefix(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    cache.manager.acquire(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    assert cache.manager.evict(1 << 40) == 1 * NAMESPACE.block_bytes
    cache.now_s = 60.0
    assert cache.manager.evict(1 << 40) == 3 * NAMESPACE.block_bytes


@pytest.mark.parametrize(
    'change', [{'dtype': 'S'}, {'dtype': 'no such'}, {'num_layers': 65535, 'num_kv_heads': 65535, 'head_dim': 65535}]
)
def test_a_layout_that_no_engine_has_is_refused_or_gets_no_slot_and_leaves_no_lock(
    cache: Cache, change: dict[str, str]
) -> None:
    odd = replace(NAMESPACE, block_tokens=65535, **change)  # type: ignore[arg-type]
    with contextlib.suppress(BadRequestError):
        lease = cache.manager.reserve(odd, ROBOT_1, np.zeros(65535, np.int32))
        assert lease.slots == ()
        cache.manager.release(lease.lease_id)
    assert cache.manager.num_locks == 0


def test_reserve_gives_fewer_slots_under_pressure_and_none_for_blocks_that_never_fit(
    open_cache: Callable[..., Cache],
) -> None:
    cache = open_cache(dram_blocks=4)
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.arange(40, dtype=np.int32))
    assert len(lease.slots) == 4
    huge = replace(NAMESPACE, num_layers=1000)
    assert cache.manager.reserve(huge, ROBOT_1, np.arange(40, dtype=np.int32)).slots == ()


def test_checksums_of_a_wrong_size_are_refused(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    with pytest.raises(BadRequestError, match='expected 16 bytes each'):
        cache.manager.commit(lease.lease_id, [b'short'])


def test_no_lock_is_left_after_all_sessions_end(cache: Cache) -> None:
    for number in range(20):
        session = SessionKey(robot_id=f'robot{number % 3}', session_id='planner')
        cache.write([*HEAD, number, number, number, number], session)
        cache.read([*HEAD, number, number, number, number, 0], session)
        cache.manager.pin(session, 50.0)
        cache.manager.reserve(NAMESPACE, session, np.arange(500, 520, dtype=np.int32))
    cache.now_s += 60.0
    for usage in cache.manager.stats().sessions:
        cache.manager.end_session(usage.session)
    cache.flush()
    cache.manager.check_integrity()
    assert cache.manager.num_locks == 0
    assert cache.manager.stats().num_leases == 0
    assert cache.manager.num_reserved_slots > 0  # of writers that may be late
    cache.now_s += 60.0
    cache.drop_dram()
    assert cache.manager.num_reserved_slots == 0
    assert cache.manager.stats().tiers[0].used_bytes == 0


def test_slots_of_a_late_writer_rest_so_that_it_cannot_overwrite_others(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=8)
    late = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.now_s = 60.0
    assert cache.write(list(range(100, 132))) == 4  # the other half of memory
    for slot in late.slots:
        cache.segments.slot(slot)[:] = 255
    assert cache.read([*range(100, 132), 0]) == 16
    assert cache.manager.stats().num_checksum_failures == 0


def test_rested_slots_are_used_again(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=8)
    cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.now_s = 120.0
    assert cache.write(list(range(100, 132))) == 8


def test_late_writer_that_says_it_is_done_gives_its_slots_back_at_once(cache: Cache) -> None:
    for end in (lambda lease_id: cache.manager.commit(lease_id, [bytes(16)] * 4), cache.manager.release):
        lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
        cache.now_s += 60.0
        assert cache.manager.stats().tiers[0].used_bytes == 4 * NAMESPACE.block_bytes
        end(lease.lease_id)
        assert cache.manager.stats().tiers[0].used_bytes == 0
    assert cache.num_in_dram == 0


def test_writer_of_before_a_clear_cannot_overwrite_what_came_after(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=8)
    late = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.manager.clear()
    cache.write(HEAD)
    for slot in late.slots:
        cache.segments.slot(slot)[:] = 255
    assert cache.read([*HEAD, 99]) == 16


def test_bytes_overwritten_by_a_writer_that_is_later_still_have_a_wrong_checksum_in_every_tier(
    open_cache: Callable[..., Cache],
) -> None:
    cache = open_cache(dram_blocks=4)
    late = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.now_s = 120.0
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    for slot in lease.slots:
        cache.segments.slot(slot)[:] = content(slot.block_key)
    cache.segments.slot(late.slots[2])[:] = 255
    cache.manager.commit(lease.lease_id, [checksum(content(slot.block_key)) for slot in lease.slots])
    cache.flush()
    cache.drop_dram()
    assert cache.read([*HEAD, 99]) == 8  # read() looks at every byte
