"""The manager as engines see it."""

from collections.abc import Callable
import contextlib
from dataclasses import replace
import threading

import numpy as np
import pytest
from small_cache import NAMESPACE, ROBOT_1, Cache, content

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import EventKind, SessionKey, Tier, block_keys
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray, checksum

ROBOT_2 = SessionKey(robot_id='robot2', session_id='planner')
HEAD = list(range(16))  # 4 blocks


def dram(cache: Cache) -> int:
    return cache.manager.stats().tiers[0].num_blocks


def test_manager_is_a_prefix_cache(cache: Cache) -> None:
    seam: PrefixCache = cache.manager
    assert seam.stats().num_leases == 0


def test_what_was_written_is_read_back_byte_by_byte(cache: Cache) -> None:
    assert cache.write(HEAD) == 4
    assert cache.read([*HEAD, 99]) == 16


def test_a_miss_is_an_empty_lease(cache: Cache) -> None:
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    assert (lease.matched_tokens, lease.slots) == (0, ())


def test_the_last_token_is_always_left_to_compute(cache: Cache) -> None:
    cache.write(HEAD)
    assert cache.read(HEAD) == 12


def test_a_prompt_that_grows_at_its_end_keeps_its_prefix(cache: Cache) -> None:
    cache.write(HEAD)
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.arange(24, dtype=np.int32))
    assert (lease.first_token, len(lease.slots)) == (16, 2)


def test_two_robots_share_the_head_and_nothing_else(cache: Cache) -> None:
    cache.write([*HEAD, 50, 51, 52, 53], ROBOT_1)
    assert cache.read([*HEAD, 60, 61, 62, 63, 0], ROBOT_2) == 16
    cache.write([*HEAD, 60, 61, 62, 63], ROBOT_2)
    assert dram(cache) == 6


@pytest.mark.parametrize('change', [{'model': 'other'}, {'revision': '2'}, {'dtype': 'float16'}, {'adapter': 'a@1'}])
def test_namespaces_never_cross(cache: Cache, change: dict[str, str]) -> None:
    cache.write(HEAD)
    assert cache.read([*HEAD, 99], namespace=replace(NAMESPACE, **change)) == 0  # type: ignore[arg-type]


def test_the_tenant_of_the_caller_counts_for_nothing(cache: Cache) -> None:
    cache.write(HEAD, namespace=replace(NAMESPACE, tenant='forged'))
    assert cache.read([*HEAD, 99], namespace=replace(NAMESPACE, tenant='other')) == 16


def test_nothing_is_visible_before_commit(cache: Cache) -> None:
    cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    assert cache.read([*HEAD, 99]) == 0


def test_commit_of_the_first_slots_publishes_only_these(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    view = cache.segments.slot(lease.slots[0])
    view[:] = content(lease.slots[0].block_key)
    assert cache.manager.commit(lease.lease_id, [checksum(view)]) == 1
    assert cache.read([*HEAD, 99]) == 4
    assert cache.manager.stats().tiers[0].used_bytes == NAMESPACE.block_bytes


def test_two_writers_of_the_same_blocks_both_see_them_published_once(cache: Cache) -> None:
    tokens = np.array(HEAD, np.int32)
    leases = [cache.manager.reserve(NAMESPACE, session, tokens) for session in (ROBOT_1, ROBOT_2)]
    counts = []
    for lease in leases:
        for slot in lease.slots:
            cache.segments.slot(slot)[:] = content(slot.block_key)
        counts.append(cache.manager.commit(lease.lease_id, [checksum(content(slot.block_key)) for slot in lease.slots]))
    assert counts == [4, 4]
    assert dram(cache) == 4
    cache.manager.check_integrity()


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


def test_locked_prefix_survives_eviction(cache: Cache) -> None:
    cache.write(HEAD)
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    for start in range(100, 1000, 16):
        cache.write(list(range(start, start + 16)), ROBOT_2)
    assert [cache.segments.slot(slot).tobytes() for slot in lease.slots] == [
        content(key).tobytes() for key in block_keys(NAMESPACE, HEAD)
    ]


def test_blocks_of_an_open_session_outlive_a_flood_and_go_first_after_it_ends(
    open_cache: Callable[..., Cache],
) -> None:
    cache = open_cache(dram_blocks=8)
    cache.write(HEAD, ROBOT_1)
    for start in range(100, 1000, 4):
        cache.write(list(range(start, start + 4)), ROBOT_2)
        cache.flush()
        cache.manager.end_session(ROBOT_2)
    assert cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 9], np.int32)).slots[3].tier is Tier.DRAM
    assert cache.manager.end_session(ROBOT_1) == 4
    cache.now_s += 60.0
    for start in range(1000, 1100, 4):
        cache.write(list(range(start, start + 4)), ROBOT_2)
        cache.flush()
        cache.manager.end_session(ROBOT_2)
    assert cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 9], np.int32)).slots[3].tier is Tier.SSD


def test_pinned_prefix_stays_until_its_time_is_over(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    assert cache.manager.pin(ROBOT_1, 100.0) == 4
    cache.drop_dram()
    assert dram(cache) == 4
    cache.now_s = 100.0
    cache.drop_dram()
    assert dram(cache) == 0


def test_pin_follows_a_session_that_grows(cache: Cache) -> None:
    cache.write(HEAD)
    cache.manager.pin(ROBOT_1, 100.0)
    cache.write([*HEAD, 50, 51, 52, 53])
    cache.flush()
    cache.drop_dram()
    assert dram(cache) == 5


def test_everybody_makes_progress_when_all_sessions_pin_all_they_have(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=8)
    for number in range(6):
        session = SessionKey(robot_id=f'robot{number}', session_id='planner')
        cache.write(list(range(number * 100, number * 100 + 16)), session)
        cache.manager.pin(session, 1000.0)
        cache.flush()
    assert cache.write(list(range(900, 916)), ROBOT_1) == 4
    pinned = [usage.is_pinned for usage in cache.manager.stats().sessions]
    assert pinned == [True, False, False, False, False, False]


def test_pin_of_an_unknown_session_pins_nothing_and_nonsense_is_refused(cache: Cache) -> None:
    assert cache.manager.pin(ROBOT_2, 10.0) == 0
    assert cache.manager.num_locks == 0
    for duration_s in (0.0, -1.0, float('nan'), float('inf')):
        with pytest.raises(BadRequestError, match='duration_s'):
            cache.manager.pin(ROBOT_1, duration_s)


def test_no_pin_is_longer_than_the_owner_allows(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    assert cache.manager.pin(ROBOT_1, 1e9) == 4
    cache.now_s = 600.0
    cache.drop_dram()
    assert dram(cache) == 0


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


def test_evicted_blocks_come_back_from_disk(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    assert dram(cache) == 0
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
    cache.manager.discard(lease.lease_id, 2)
    assert cache.read([*HEAD, 99]) == 8
    stats = cache.manager.stats()
    assert [tier.num_blocks for tier in stats.tiers] == [2, 2]
    assert (stats.num_checksum_failures, stats.num_leases) == (1, 0)


def test_bytes_that_change_before_they_reach_the_disk_are_never_served(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    for slot in lease.slots:
        cache.segments.slot(slot)[:] = content(slot.block_key)
    wrong = [checksum(content(slot.block_key)) for slot in lease.slots[:3]] + [bytes(16)]
    cache.manager.commit(lease.lease_id, wrong)
    cache.flush()
    assert cache.read([*HEAD, 99]) == 12
    assert cache.manager.stats().num_checksum_failures == 1


def test_checksums_of_a_wrong_size_are_refused(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    with pytest.raises(BadRequestError, match='expected 16 bytes each'):
        cache.manager.commit(lease.lease_id, [b'short'])


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
    cache.drop_dram()
    assert cache.manager.stats().tiers[0].used_bytes == 0


def test_transfers_that_find_the_queue_full_leave_no_lock(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(max_queued_transfers=0)
    cache.write(HEAD)
    assert cache.manager.num_locks == 0
    assert cache.manager.stats().tiers[1].num_errors == 1


def test_session_refers_to_a_block_until_the_last_tier_drops_it(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(disk_bytes=4 * 4096)
    cache.write(HEAD, ROBOT_1)
    cache.flush()
    cache.drop_dram()
    assert cache.manager.stats().sessions[0].num_blocks == 4
    cache.write(list(range(100, 112)), ROBOT_2)
    cache.flush()
    assert [usage.num_blocks for usage in cache.manager.stats().sessions] == [1, 3]


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
    assert [tier.used_bytes for tier in cache.manager.stats().tiers] == [0, 0]
    cache.manager.check_integrity()


def test_events_tell_every_change_in_order(cache: Cache) -> None:
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    cache.read([*HEAD, 99])
    cache.manager.clear()
    keys = block_keys(NAMESPACE, HEAD)
    told = [(event.kind, event.tier, sorted(event.block_keys)) for event in cache.events if event.block_keys]
    removed = [key for kind, _, found in told if kind is EventKind.REMOVED for key in found]
    assert told[0] == (EventKind.STORED, Tier.DRAM, sorted(keys))
    assert told[1] == (EventKind.STORED, Tier.SSD, sorted(keys))
    assert (EventKind.MOVED, Tier.DRAM, sorted(keys)) in told
    assert sorted(removed) == sorted(keys + keys)
    assert [event.sequence for event in cache.events] == list(range(1, len(cache.events) + 1))
    assert EventKind.CLEARED in [event.kind for event in cache.events]


def test_books_of_sessions_and_prompts_add_up(cache: Cache) -> None:
    cache.read(HEAD)
    cache.write(HEAD)
    cache.read([*HEAD, 99])
    stats = cache.manager.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.num_blocks) == (33, 16, 4)
    (usage,) = stats.sessions
    assert (usage.session, usage.num_blocks, usage.prompt_tokens, usage.cached_tokens) == (ROBOT_1, 4, 33, 16)


def test_threads_that_read_write_and_evict_at_once_see_only_right_bytes(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=16)
    faults: list[str] = []

    def work(number: int) -> None:
        session = SessionKey(robot_id=f'robot{number}', session_id='planner')
        for turn in range(40):
            tokens = [*HEAD, *range(number * 1000, number * 1000 + 4 * (turn % 6))]
            cache.write(tokens, session)
            matched = cache.read([*tokens, 0], session)
            if matched % 4:
                faults.append(f'{matched} tokens')
            if turn % 10 == 9:
                cache.manager.evict(NAMESPACE.block_bytes * 4)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    cache.flush()
    cache.manager.check_integrity()
    assert faults == []
    assert cache.manager.num_locks == 0
    assert cache.manager.stats().num_checksum_failures == 0
