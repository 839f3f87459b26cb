"""The manager as engines see it."""

from collections.abc import Callable
from dataclasses import replace
import threading

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_1, ROBOT_2, Cache, content

from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import EventKind, SessionKey, Tier, block_keys
from kv_agent_ros.kvcache.storage.base import checksum


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
    assert cache.num_in_dram == 6


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
    assert cache.num_in_dram == 4
    cache.manager.check_integrity()


def test_locked_prefix_survives_eviction(cache: Cache) -> None:
    cache.write(HEAD)
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.array([*HEAD, 99], np.int32))
    for start in range(100, 1000, 16):
        cache.write(list(range(start, start + 16)), ROBOT_2)
    assert [cache.segments.slot(slot).tobytes() for slot in lease.slots] == [
        content(key).tobytes() for key in block_keys(NAMESPACE, HEAD)
    ]


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
