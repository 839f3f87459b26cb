"""Prefixes of hybrid models in a slower store: all parts of one or none of it, and known again after a restart."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kv_agent_ros.kvcache.block import BlockLayout, KVNamespace
from kv_agent_ros.kvcache.components import Component, Part, full_attention, sliding_window, state_snapshot
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.hybrid_backing import HybridBacking
from kv_agent_ros.kvcache.hybrid_tier import HybridTier
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.storage.base import BlockStore, checksum
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena

NAMESPACE = KVNamespace(
    model='hybrid', revision='1', dtype='float32', num_layers=1, num_kv_heads=1, head_dim=2, block_tokens=4
)
LAYOUT = BlockLayout(shape=(2, 1, 1, 4, 2), dtype='float32')
ATTENTION, WINDOW, STATE = full_attention(LAYOUT), sliding_window(LAYOUT, 6), state_snapshot(16, 'float32')
COMPONENTS = (ATTENTION, WINDOW, STATE)


@pytest.fixture
def tier() -> Iterator[HybridTier]:
    stores = {component.name: HostStore(SharedArena.create(64 * 16)) for component in COMPONENTS}
    made = HybridTier(components=COMPONENTS, stores=stores, policy=LruPolicy())
    yield made
    made.check_integrity()
    assert made.cache.num_locks == 0
    made.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskStore]:
    store = DiskStore.open(tmp_path / 'kv', 1 << 20)
    yield store
    store.close()


def path_of(*blocks: int) -> TokenPath:
    return token_path(NAMESPACE, np.repeat(np.array(blocks, np.int32), 4))


def part_of(component: Component, path: TokenPath, index: int) -> Part:
    return Part(component=component, block_key=path.keys()[index], index=index)


def write(tier: HybridTier, path: TokenPath) -> None:
    """Publish the path with what its end needs; every part's bytes are its key, twice."""
    lease = tier.reserve(path, {component.name: component.needed(path.num_blocks) for component in COMPONENTS})
    for part in lease.slots:
        tier.view(lease, part)[:] = np.frombuffer(part.key * 2, np.uint8)
    tier.publish(lease, {part: checksum(tier.view(lease, part)) for part in lease.slots})


def forget(tier: HybridTier, path: TokenPath) -> None:
    tier.cut(path, 0)
    assert tier.cache.match(path) == 0


def backing_of(store: BlockStore) -> HybridBacking:
    return HybridBacking.open(components=COMPONENTS, store=store, policy=LruPolicy())


def check(backing: HybridBacking, store: BlockStore) -> None:
    """The store has the parts of the tree and nothing else."""
    backing.cache.check_integrity()
    assert backing.cache.num_locks == 0
    assert store.usage().num_blocks == sum(backing.cache.num_parts(component) for component in COMPONENTS)


def test_prefix_that_left_memory_comes_back_with_every_part(tier: HybridTier, disk: DiskStore) -> None:
    backing = backing_of(disk)
    write(tier, path_of(1, 2, 3))
    assert backing.save(path_of(1, 2, 3), tier) == 3
    forget(tier, path_of(1, 2, 3))
    assert backing.load(path_of(1, 2, 3, 4), tier) == 3
    lock = tier.lock(path_of(1, 2, 3))
    for part in (part for component in COMPONENTS for part in lock.parts(component)):
        out = np.zeros(64, np.uint8)
        assert tier.read(part, out)
        assert out.tobytes() == part.key * 2
    tier.unlock(lock)
    check(backing, disk)


def test_second_save_writes_only_what_is_not_there(tier: HybridTier, disk: DiskStore) -> None:
    backing = backing_of(disk)
    for path in (path_of(1, 2), path_of(1, 2, 3), path_of(1, 2, 3)):
        write(tier, path)
        backing.save(path, tier)
    assert [backing.cache.num_parts(component) for component in COMPONENTS] == [3, 3, 2]
    check(backing, disk)


def test_prefixes_are_known_again_after_a_restart(tier: HybridTier, tmp_path: Path) -> None:
    paths = (path_of(1, 2, 3), path_of(1, 2, 4), path_of(5))
    disk = DiskStore.open(tmp_path / 'kv', 1 << 20)
    backing = backing_of(disk)
    for path in paths:
        write(tier, path)
        backing.save(path, tier)
    disk.close()
    tier.cut(path_of(1), 0)
    tier.cut(path_of(5), 0)
    again = DiskStore.open(tmp_path / 'kv', 1 << 20)
    backing = backing_of(again)
    check(backing, again)
    assert [backing.load(path, tier) for path in paths] == [3, 3, 1]
    again.close()


@pytest.mark.parametrize('component', COMPONENTS, ids=lambda component: component.name)
def test_lost_part_makes_the_hit_shorter(tier: HybridTier, disk: DiskStore, component: Component) -> None:
    backing = backing_of(disk)
    write(tier, path_of(1))
    write(tier, path_of(1, 2, 3))
    for path in (path_of(1), path_of(1, 2, 3)):
        backing.save(path, tier)
    forget(tier, path_of(1))
    disk.delete(part_of(component, path_of(1, 2, 3), 2).key)
    assert backing.load(path_of(1, 2, 3), tier) == 1
    assert backing.load(path_of(1, 2, 3), tier) == 1
    check(backing, disk)


@pytest.mark.parametrize('component', COMPONENTS, ids=lambda component: component.name)
def test_part_lost_while_the_owner_was_away_is_a_shorter_hit(
    tier: HybridTier, disk: DiskStore, component: Component
) -> None:
    write(tier, path_of(1, 2, 3))
    backing_of(disk).save(path_of(1, 2, 3), tier)
    disk.delete(part_of(component, path_of(1, 2, 3), 2).key)
    backing = backing_of(disk)
    assert backing.cache.match(path_of(1, 2, 3)) == 0
    check(backing, disk)


def test_full_store_makes_room_for_the_prefix_that_is_saved(tier: HybridTier) -> None:
    store = HostStore(SharedArena.create(64 * 9))
    backing = backing_of(store)
    for number in range(1, 5):
        write(tier, path_of(number, number))  # 2 + 2 + 1 parts
        assert backing.save(path_of(number, number), tier) == 2
        check(backing, store)
    assert backing.cache.match(path_of(1, 1)) == 0
    store.close()


def test_full_store_keeps_the_head_of_the_prefix_that_is_saved(tier: HybridTier) -> None:
    store = HostStore(SharedArena.create(64 * 7))  # 4 blocks, 2 windows, 1 state
    backing = backing_of(store)
    for path in (path_of(1, 2, 3), path_of(1, 2, 3, 4)):
        write(tier, path)
        assert backing.save(path, tier) == path.num_blocks
        check(backing, store)
    store.close()


def test_prefix_that_can_never_fit_is_not_half_stored(tier: HybridTier) -> None:
    store = HostStore(SharedArena.create(64 * 4))
    backing = backing_of(store)
    write(tier, path_of(1, 2, 3))
    assert backing.save(path_of(1, 2, 3), tier) == 0
    check(backing, store)
    store.close()


def test_cleared_store_is_empty(tier: HybridTier, disk: DiskStore) -> None:
    backing = backing_of(disk)
    write(tier, path_of(1, 2, 3))
    backing.save(path_of(1, 2, 3), tier)
    backing.clear()
    assert disk.usage().num_blocks == 0
    assert backing.load(path_of(1, 2, 3), tier) == 3  # memory still has it
