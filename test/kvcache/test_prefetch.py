"""What a next turn needs is in memory before it comes."""

from collections.abc import Callable
import threading

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_1, ROBOT_2, Cache

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.base import PrefetchPolicy
from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.storage.base import BlockRecord, BlockStore, ByteArray

LONG = list(range(400))  # 100 blocks
NOTHING: list[int] = []


class GatedReads:
    """A store whose reads wait for the test."""

    def __init__(self, inner: BlockStore) -> None:
        self._inner = inner
        self.gate = threading.Event()
        self.put, self.delete, self.size_bytes = inner.put, inner.delete, inner.size_bytes
        self.records, self.usage, self.close = inner.records, inner.usage, inner.close

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        assert self.gate.wait(30.0)
        return self._inner.get(key, out)


def prefetch(cache: Cache, tokens: list[int], policy: PrefetchPolicy, timeout_s: float) -> tuple[int, bool]:
    done = cache.manager.prefetch(NAMESPACE, ROBOT_1, np.asarray(tokens, np.int32), policy, timeout_s)
    return done.num_blocks, done.is_complete


@pytest.fixture
def gated(open_cache: Callable[..., Cache]) -> tuple[Cache, GatedReads]:
    """100 blocks on a disk that waits."""
    stores: list[GatedReads] = []

    def wrap(inner: BlockStore) -> BlockStore:
        stores.append(GatedReads(inner))
        return stores[-1]

    cache = open_cache(dram_blocks=256, wrap_store=wrap)
    cache.write(LONG)
    cache.flush()
    cache.drop_dram()
    return cache, stores[0]


def test_waiting_prefetch_brings_all_to_memory(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    store.gate.set()
    assert prefetch(cache, LONG, PrefetchPolicy.WAIT_COMPLETE, 30.0) == (100, True)
    assert cache.manager.stats().num_prefetched_blocks == 100
    assert cache.manager.num_locks == 0
    match = cache.manager.match(NAMESPACE, np.asarray([*LONG, 0], np.int32))
    assert [tier.value for tier, _ in match.sources] == ['dram']


def test_best_effort_returns_at_once_and_goes_on(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    assert prefetch(cache, LONG, PrefetchPolicy.BEST_EFFORT, 30.0) == (0, False)
    store.gate.set()
    assert cache.manager.flush(30.0)
    assert prefetch(cache, LONG, PrefetchPolicy.BEST_EFFORT, 0.0) == (100, True)


def test_wait_that_takes_too_long_goes_on_behind(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    assert prefetch(cache, LONG, PrefetchPolicy.WAIT_COMPLETE, 0.01) == (0, False)
    store.gate.set()
    assert cache.manager.flush(30.0)
    assert cache.num_in_dram == 100


def test_prefetch_with_a_timeout_gives_up_the_rest(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    assert prefetch(cache, LONG, PrefetchPolicy.TIMEOUT, 0.01) == (0, True)
    store.gate.set()
    assert cache.manager.flush(30.0)
    assert cache.num_in_dram == 32  # the step that was under way
    cache.manager.check_integrity()


def test_without_tokens_what_the_session_used_last_is_meant(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    store.gate.set()
    nowhere = KVNamespace(model='', revision='', dtype='', num_layers=0, num_kv_heads=0, head_dim=0, block_tokens=0)
    done = cache.manager.prefetch(nowhere, ROBOT_1, np.zeros(0, np.int32), PrefetchPolicy.WAIT_COMPLETE, 30.0)
    assert (done.num_blocks, done.is_complete) == (100, True)
    cache.manager.end_session(ROBOT_1)
    assert prefetch(cache, NOTHING, PrefetchPolicy.WAIT_COMPLETE, 30.0) == (0, True)


def test_a_turn_that_comes_meanwhile_gets_right_bytes(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    prefetch(cache, LONG, PrefetchPolicy.BEST_EFFORT, 0.0)
    store.gate.set()
    assert cache.read([*LONG, 0], ROBOT_2) == 400
    assert cache.manager.flush(30.0)
    cache.manager.check_integrity()
    assert cache.manager.num_reserved_slots == 0


def test_prefetch_during_clear_brings_nothing_back(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    prefetch(cache, LONG, PrefetchPolicy.BEST_EFFORT, 0.0)
    cache.manager.clear()
    store.gate.set()
    assert cache.manager.flush(30.0)
    assert cache.num_in_dram == 0
    cache.manager.check_integrity()


def test_prefetch_for_a_closed_session_refers_to_nothing(gated: tuple[Cache, GatedReads]) -> None:
    cache, store = gated
    prefetch(cache, LONG, PrefetchPolicy.BEST_EFFORT, 0.0)
    cache.manager.end_session(ROBOT_1)
    store.gate.set()
    assert cache.manager.flush(30.0)
    assert cache.manager.stats().sessions == ()


def test_nothing_to_bring_is_complete_and_an_impossible_time_is_refused(cache: Cache) -> None:
    assert prefetch(cache, HEAD, PrefetchPolicy.WAIT_COMPLETE, 1.0) == (0, True)
    for timeout_s in (-1.0, float('nan'), float('inf')):
        with pytest.raises(BadRequestError, match='timeout_s'):
            prefetch(cache, HEAD, PrefetchPolicy.TIMEOUT, timeout_s)
