"""Two caches with one shared folder behind them, as on two machines."""

from collections.abc import Callable, Iterator
from pathlib import Path
import threading
import time

import numpy as np
import pytest
from small_cache import HEAD, NAMESPACE, ROBOT_2, Cache

from kv_agent_ros.kvcache.base import PrefetchPolicy
from kv_agent_ros.kvcache.block import EventKind, Tier
from kv_agent_ros.kvcache.storage.base import BlockStore
from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore, GuardLimits
from kv_agent_ros.kvcache.storage.remote import RemoteStore
from kv_agent_ros.kvcache.storage.tiered import BackingTier, Sharing, TierOptions

OPTIONS = TierOptions(sharing=Sharing.SHARED)
OpenCache = Callable[[str], Cache]


@pytest.fixture
def open_machine(tmp_path: Path) -> Iterator[OpenCache]:
    """Open the cache of another machine; the shared folder is theirs together."""
    opened: list[Cache] = []

    def open_one(name: str) -> Cache:
        store = GuardedStore(RemoteStore.open(tmp_path / 'shared', 1 << 20))
        remote = BackingTier.open(tier=Tier.REMOTE, store=store, options=OPTIONS)
        opened.append(Cache(16, tmp_path / name, 1 << 20, below=(remote,)))
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()


def test_what_one_machine_computes_later_is_served_on_the_other(open_machine: OpenCache) -> None:
    here, there = open_machine('here'), open_machine('there')
    here.write(HEAD)
    here.flush()
    lease = there.manager.acquire(NAMESPACE, ROBOT_2, np.array([*HEAD, 99], np.int32))
    there.manager.release(lease.lease_id)
    assert [slot.tier for slot in lease.slots] == [Tier.REMOTE] * 4
    assert there.read([*HEAD, 99]) == 16
    there.manager.check_integrity()


def test_only_the_part_that_the_other_machine_has_is_added(open_machine: OpenCache) -> None:
    here, there = open_machine('here'), open_machine('there')
    there.write(HEAD[:8])
    there.flush()
    here.write(HEAD)
    here.flush()
    assert there.read([*HEAD, *range(50, 60)]) == 16
    stored = [event for event in there.events if event.tier is Tier.REMOTE and event.kind is EventKind.STORED]
    assert sum(len(event.block_keys) for event in stored) == 4


def test_a_prefetch_finds_what_others_have_put_there(open_machine: OpenCache) -> None:
    here, there = open_machine('here'), open_machine('there')
    here.write(HEAD)
    here.flush()
    tokens = np.array(HEAD, np.int32)
    done = there.manager.prefetch(NAMESPACE, ROBOT_2, tokens, PrefetchPolicy.WAIT_COMPLETE, 30.0)
    assert (done.num_blocks, done.is_complete) == (4, True)


def test_a_write_that_meets_the_same_blocks_of_others_keeps_them(open_machine: OpenCache) -> None:
    here, there = open_machine('here'), open_machine('there')
    here.write(HEAD)
    there.write(HEAD)
    here.flush()
    there.flush()
    third = open_machine('third')
    assert third.read([*HEAD, 99]) == 16


def test_what_the_other_machine_forgets_is_a_miss_here(open_machine: OpenCache) -> None:
    here, there = open_machine('here'), open_machine('there')
    here.write(HEAD)
    here.flush()
    there.manager.clear()
    assert there.read([*HEAD, 99]) == 0
    assert open_machine('third').read([*HEAD, 99]) == 0
    assert here.read([*HEAD, 99]) == 16  # it has its own copies
    here.manager.check_integrity()


def test_a_shared_folder_that_hangs_is_a_miss(tmp_path: Path) -> None:
    store = FakeStore(1 << 20)
    guarded = GuardedStore(store, GuardLimits(deadline_s=0.2))
    remote = BackingTier.open(tier=Tier.REMOTE, store=guarded, options=OPTIONS)
    cache = Cache(16, tmp_path / 'here', 1 << 20, below=(remote,))
    store.works.clear()
    assert cache.read([*HEAD, 99]) == 0
    assert cache.manager.stats().tiers[-1].is_degraded
    store.works.set()
    cache.close()


@pytest.mark.parametrize('fault', ['hangs', 'fails', 'is degraded'])
def test_what_a_broken_shared_folder_did_not_forget_is_not_served_when_it_works_again(
    tmp_path: Path, fault: str
) -> None:
    store = FakeStore(1 << 20)
    limits = GuardLimits(deadline_s=0.2, scan_deadline_s=0.2, retry_s=0.0)
    caches = [
        Cache(16, tmp_path / name, 1 << 20, below=(remote_over(GuardedStore(store, limits)),))
        for name in ('here', 'there')
    ]
    caches[0].write(HEAD)
    caches[0].flush()
    if fault == 'fails':
        store.is_failing = True
    else:
        store.works.clear()
    for _ in range(1 + (fault == 'is degraded')):
        caches[1].manager.clear()  # it does not know yet what is in the folder
    store.is_failing = False
    store.works.set()
    for _ in wait_until(lambda: not store.blocks):
        assert caches[1].read([*HEAD, 99]) == 0
    caches[1].write(HEAD)
    caches[1].flush()
    assert len(store.blocks) == 4
    for cache in caches:
        cache.close()


def wait_until(is_so: Callable[[], bool]) -> Iterator[int]:
    """Turns of a loop that ends when it is so, and fails when that takes too long."""
    end_s = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < end_s
        yield 0


def remote_over(store: BlockStore) -> BackingTier:
    return BackingTier.open(tier=Tier.REMOTE, store=store, options=OPTIONS)


@pytest.mark.parametrize('act', ['clear', 'discard'])
def test_nobody_waits_for_a_hanging_folder_that_is_to_forget(tmp_path: Path, act: str) -> None:
    store = FakeStore(1 << 20)
    guarded = GuardedStore(store, GuardLimits(deadline_s=60.0))
    cache = Cache(16, tmp_path / 'here', 1 << 20, below=(remote_over(guarded),))
    cache.write(HEAD)
    cache.flush()
    lease = cache.manager.acquire(NAMESPACE, ROBOT_2, np.array([*HEAD, 99], np.int32))
    cache.segments.slot(lease.slots[0])[:] = 255
    acts = {'clear': cache.manager.clear, 'discard': lambda: cache.manager.discard(lease.lease_id, 0)}
    store.works.clear()
    threads = [threading.Thread(target=acts[act]), threading.Thread(target=cache.write, args=(range(100, 116),))]
    for thread in threads:
        thread.start()
    threads[1].join(10.0)
    is_done = [not thread.is_alive() for thread in threads]
    store.works.set()
    for thread in threads:
        thread.join(10.0)
    cache.close()
    assert is_done == [False, True]
