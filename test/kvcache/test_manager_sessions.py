"""Sessions keep their blocks longer, pins keep them for a time, and neither stops the others."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_1, ROBOT_2, Cache, content

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import SessionKey, Tier
from kv_agent_ros.kvcache.storage.base import checksum


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
    assert cache.num_in_dram == 4
    cache.now_s = 100.0
    cache.drop_dram()
    assert cache.num_in_dram == 0


def test_pin_follows_a_session_that_grows(cache: Cache) -> None:
    cache.write(HEAD)
    cache.manager.pin(ROBOT_1, 100.0)
    cache.write([*HEAD, 50, 51, 52, 53])
    cache.flush()
    cache.drop_dram()
    assert cache.num_in_dram == 5


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


def test_pins_hold_half_of_memory_at_most_also_when_blocks_are_smaller_than_what_they_occupy(
    open_cache: Callable[..., Cache],
) -> None:
    cache = open_cache(dram_blocks=8)  # 1,024 bytes
    tiny = replace(NAMESPACE, block_tokens=1, head_dim=1)  # 8 bytes in 64
    lease = cache.manager.reserve(tiny, ROBOT_1, np.asarray(HEAD, np.int32))
    cache.manager.commit(lease.lease_id, [checksum(cache.segments.slot(slot)) for slot in lease.slots])
    assert len(lease.slots) == 16
    assert cache.manager.pin(ROBOT_1, 10.0) == 8


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
    assert cache.num_in_dram == 0


def test_session_refers_to_a_block_until_the_last_tier_drops_it(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(disk_bytes=4 * 4096)
    cache.write(HEAD, ROBOT_1)
    cache.flush()
    cache.drop_dram()
    assert cache.manager.stats().sessions[0].num_blocks == 4
    cache.write(list(range(100, 112)), ROBOT_2)
    cache.flush()
    assert [usage.num_blocks for usage in cache.manager.stats().sessions] == [1, 3]


def test_books_of_sessions_and_prompts_add_up(cache: Cache) -> None:
    cache.read(HEAD)
    cache.write(HEAD)
    cache.read([*HEAD, 99])
    stats = cache.manager.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.num_blocks) == (33, 16, 4)
    (usage,) = stats.sessions
    assert (usage.session, usage.num_blocks, usage.prompt_tokens, usage.cached_tokens) == (ROBOT_1, 4, 33, 16)


def references(cache: Cache) -> dict[str, int]:
    return {usage.session.robot_id: usage.num_blocks for usage in cache.manager.stats().sessions}


def test_turn_that_ends_after_its_session_does_not_revive_it(cache: Cache) -> None:
    cache.read(HEAD)
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    for slot in lease.slots:
        cache.segments.slot(slot)[:] = content(slot.block_key)
    cache.manager.end_session(ROBOT_1)
    assert cache.manager.commit(lease.lease_id, [checksum(content(slot.block_key)) for slot in lease.slots]) == 4
    cache.write([*HEAD, *range(20, 28)])  # reserved and committed after the end: still of the old turn
    assert references(cache) == {}
    assert cache.manager.pin(ROBOT_1, 10.0) == 0


def test_turn_of_before_refers_to_nothing_in_a_session_that_was_begun_again(cache: Cache) -> None:
    lease = cache.manager.reserve(NAMESPACE, ROBOT_1, np.array(HEAD, np.int32))
    cache.manager.end_session(ROBOT_1)
    cache.read(list(range(100, 117)))
    cache.manager.commit(lease.lease_id, [bytes(16)] * 4)
    assert references(cache) == {'robot1': 0}
    cache.write(list(range(100, 116)))
    assert references(cache) == {'robot1': 4}


def test_a_retry_starts_from_the_prefix_of_its_source(cache: Cache) -> None:
    cache.write(HEAD)
    assert cache.manager.fork(ROBOT_1, ROBOT_2) == 4
    cache.manager.end_session(ROBOT_1)
    assert references(cache) == {'robot2': 4}
    assert cache.manager.pin(ROBOT_2, 10.0) == 4
    assert cache.manager.fork(SessionKey(robot_id='nobody', session_id=''), ROBOT_1) == 0


def test_candidates_share_the_head_and_have_tails_of_their_own(cache: Cache) -> None:
    cache.write(HEAD)
    candidates = [SessionKey(robot_id='robot1', session_id=f'candidate{n}') for n in range(3)]
    for number, candidate in enumerate(candidates):
        cache.manager.fork(ROBOT_1, candidate)
        cache.write([*HEAD, *range(100 * number, 100 * number + 8)], candidate)
    assert cache.num_in_dram == 4 + 3 * 2
    assert [cache.manager.end_session(candidate) for candidate in candidates] == [6, 6, 6]


def test_closing_returns_exactly_what_was_held(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=8)
    for number in range(50):
        session = SessionKey(robot_id=f'robot{number}', session_id='planner')
        cache.write(list(range(number * 16, number * 16 + 16)), session)
        cache.manager.pin(session, 1000.0)
        cache.manager.end_session(session)
        cache.flush()
        usage = cache.manager.stats().tiers[0]
        assert (cache.manager.num_locks, usage.evictable_bytes) == (0, usage.used_bytes)
    assert cache.manager.stats().sessions == ()
