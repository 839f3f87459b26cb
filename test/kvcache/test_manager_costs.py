"""Hits that would cost more than they save are not taken, and the books say what was saved."""

from collections.abc import Callable

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_1, Cache

from kv_agent_ros.kvcache.base import PrefetchPolicy

PROMPT = [*HEAD, 99]


class Stopwatch:
    """A timer on which every look lasts."""

    def __init__(self, step_s: float) -> None:
        self._now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self._now_s += self.step_s
        return self._now_s


def test_slow_tier_is_passed_by_when_the_engine_is_faster(open_cache: Callable[..., Cache]) -> None:
    timer = Stopwatch(step_s=5.0)
    cache = open_cache(prefill_tokens_per_s=100.0, timer=timer)
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    assert cache.read(PROMPT) == 16  # 5 s instead of 0.16 s: measured
    cache.drop_dram()
    assert cache.read(PROMPT) == 0
    assert cache.manager.match(NAMESPACE, np.asarray(PROMPT, np.int32)).matched_tokens == 0
    timer.step_s = 0.001
    cache.now_s += 30.0
    assert cache.read(PROMPT) == 16  # a trial finds out that it is fast now


def test_books_tell_what_was_saved_and_what_loading_cost(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(prefill_tokens_per_s=100.0, timer=Stopwatch(step_s=0.01))
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    cache.read(PROMPT)
    cache.read(PROMPT)
    stats = cache.manager.stats()
    assert stats.saved_compute_s == pytest.approx(0.32)
    assert stats.load_s == pytest.approx(0.05)  # a look before each of 4 blocks and one at the end


def test_prompt_waits_for_a_slow_tier_only_so_long_and_gets_what_came(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(
        timer=Stopwatch(step_s=1.0), max_load_s=4.5
    )  # a look before the tier is asked, one before it is read
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    assert cache.read(PROMPT) == 8  # of 16
    assert cache.read(PROMPT) == 16  # nothing is lost: the next one gets the rest
    cache.manager.check_integrity()


def test_memory_is_not_emptied_for_blocks_that_nobody_waits_for(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(dram_blocks=4, timer=Stopwatch(step_s=1.0), max_load_s=0.0)
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    other = range(100, 116)
    cache.write(other)
    cache.flush()
    assert cache.read(PROMPT) == 0
    assert cache.read([*other, 99]) == 16


def test_prefetch_is_not_in_a_hurry(open_cache: Callable[..., Cache]) -> None:
    cache = open_cache(timer=Stopwatch(step_s=1.0), max_load_s=0.0)
    cache.write(HEAD)
    cache.flush()
    cache.drop_dram()
    tokens = np.asarray(PROMPT, np.int32)
    cache.manager.prefetch(NAMESPACE, ROBOT_1, tokens, PrefetchPolicy.WAIT_COMPLETE, 30.0)
    assert cache.read(PROMPT) == 16


def test_speed_of_the_engine_is_measured_between_what_it_gets_and_what_it_publishes(cache: Cache) -> None:
    cache.read(PROMPT)
    cache.now_s += 2.0
    cache.write(HEAD)
    assert cache.manager.stats().saved_compute_s == 0.0
    cache.read(PROMPT)
    assert cache.manager.stats().saved_compute_s == pytest.approx(2.0)


def test_time_in_which_nothing_was_computed_does_not_count(cache: Cache) -> None:
    cache.read(PROMPT)
    cache.now_s += 2.0
    cache.write(HEAD)
    cache.now_s += 20.0
    lease = cache.manager.acquire(NAMESPACE, ROBOT_1, np.asarray(PROMPT, np.int32))
    cache.manager.release(lease.lease_id)
    cache.now_s += 1.0
    cache.write([*HEAD, *range(50, 58)])
    before = cache.manager.stats().saved_compute_s
    cache.read(PROMPT)
    assert cache.manager.stats().saved_compute_s - before == pytest.approx(2.0)
