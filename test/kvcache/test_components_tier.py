"""The memory of a hybrid model: parts land together, budgets are apart, and what is read is a checked copy."""

from collections.abc import Callable, Collection, Iterator, Mapping
import sys

import numpy as np
import pytest

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockLayout, KVNamespace
from kv_agent_ros.kvcache.components import Component, full_attention, sliding_window, state_snapshot
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.hybrid_tier import HybridTier, HybridWrite
from kv_agent_ros.kvcache.path import TokenPath, token_path
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.host import HostStore, SegmentMap, SharedArena

NAMESPACE = KVNamespace(
    model='hybrid', revision='1', dtype='float32', num_layers=1, num_kv_heads=1, head_dim=2, block_tokens=4
)
LAYOUT = BlockLayout(shape=(2, 1, 1, 4, 2), dtype='float32')  # 64 bytes, as the state below
ATTENTION, WINDOW, STATE = full_attention(LAYOUT), sliding_window(LAYOUT, 6), state_snapshot(16, 'float32')
POSITIONS = Component(
    name='positions', layout=BlockLayout(shape=(1, 1, 1, 4, 1), dtype='int32'), span_blocks=sys.maxsize
)  # stands for what a model notes per token, like the experts that computed it

MakeTier = Callable[[dict[Component, int]], HybridTier]


@pytest.fixture
def open_tier() -> Iterator[MakeTier]:
    opened: list[HybridTier] = []

    def make(max_parts: dict[Component, int]) -> HybridTier:
        stores = {component.name: HostStore(SharedArena.create(64 * num)) for component, num in max_parts.items()}
        opened.append(HybridTier(components=tuple(max_parts), stores=stores, policy=LruPolicy()))
        return opened[-1]

    yield make
    for tier in opened:
        tier.check_integrity()
        assert tier.cache.num_locks == 0
        tier.close()


@pytest.fixture
def tier(open_tier: MakeTier) -> HybridTier:
    return open_tier({ATTENTION: 16, WINDOW: 8, STATE: 4})


def path_of(*blocks: int) -> TokenPath:
    return token_path(NAMESPACE, np.repeat(np.array(blocks, np.int32), 4))


def fill(tier: HybridTier, write: HybridWrite) -> int:
    """Write every slot and publish."""
    checksums = {}
    for part in write.slots:
        view = tier.view(write, part)
        view[:] = np.resize(np.frombuffer(part.key, np.uint8), len(view))
        checksums[part] = checksum(view)
    return tier.publish(write, checksums)


def store(tier: HybridTier, path: TokenPath, wanted: Mapping[str, Collection[int]] | None = None) -> int:
    ends = {component.name: component.needed(path.num_blocks) for component in tier.cache.components}
    return fill(tier, tier.reserve(path, ends if wanted is None else wanted))


def test_parts_are_read_back_as_they_were_written(tier: HybridTier) -> None:
    assert store(tier, path_of(1, 2, 3)) == 3
    lock = tier.lock(path_of(1, 2, 3, 4))
    for part in (part for component in (ATTENTION, WINDOW, STATE) for part in lock.parts(component)):
        out = np.zeros(64, np.uint8)
        assert tier.read(part, out)
        assert out.tobytes() == part.key * 2
    tier.unlock(lock)


def test_engine_of_another_process_writes_and_finds_parts_by_their_slots(tier: HybridTier) -> None:
    segments = SegmentMap()
    write = tier.reserve(path_of(1), {'full': [0], 'swa': [0], 'mamba': [0]})
    for part, slot in write.slots.items():
        segments.slot(slot)[:] = np.resize(np.frombuffer(part.key, np.uint8), 64)
    tier.publish(write, {part: checksum(segments.slot(slot)) for part, slot in write.slots.items()})
    lock = tier.lock(path_of(1))
    slots = {part: tier.slot(part) for component in (ATTENTION, WINDOW, STATE) for part in lock.parts(component)}
    assert [segments.slot(slot).tobytes() == part.key * 2 for part, slot in slots.items()] == [True, True, True]
    assert all(checksum(segments.slot(slot)) == slot.checksum for slot in slots.values())
    tier.unlock(lock)


def test_writing_on_what_was_read_leaves_the_stored_state_alone(tier: HybridTier) -> None:
    store(tier, path_of(1))
    lock = tier.lock(path_of(1))
    (part,) = lock.parts(STATE)
    out = np.zeros(64, np.uint8)
    tier.read(part, out)
    out += 1
    assert tier.read(part, np.zeros(64, np.uint8))
    with pytest.raises(ValueError, match='read-only'):
        tier.stored(part)[1][:] = 0
    tier.unlock(lock)


def test_write_is_invisible_until_it_is_published(tier: HybridTier) -> None:
    write = tier.reserve(path_of(1, 2), {'full': [0, 1], 'swa': [0, 1], 'mamba': [1]})
    assert tier.cache.match(path_of(1, 2)) == 0
    tier.check_integrity()
    assert fill(tier, write) == 2
    assert tier.cache.match(path_of(1, 2)) == 2


@pytest.mark.parametrize('missing', ['full', 'swa', 'mamba'])
def test_nothing_is_served_while_one_component_has_not_landed(tier: HybridTier, missing: str) -> None:
    wanted = {'full': [0, 1], 'swa': [0, 1], 'mamba': [1]}
    assert store(tier, path_of(1, 2), wanted | {missing: []}) == 0
    tier.check_integrity()
    assert [tier.cache.num_parts(component) for component in (ATTENTION, WINDOW, STATE)] == [0, 0, 0]


def test_canceled_write_gives_its_slots_back_and_publishes_nothing(tier: HybridTier) -> None:
    write = tier.reserve(path_of(1, 2), {'full': [0, 1], 'swa': [0, 1], 'mamba': [1]})
    tier.cancel(write)
    tier.cancel(write)
    assert tier.publish(write, {}) == 0
    tier.check_integrity()


def test_two_writers_of_one_prefix_publish_it_once(tier: HybridTier) -> None:
    wanted = {'full': [0, 1], 'swa': [0, 1], 'mamba': [1]}
    first, second = tier.reserve(path_of(1, 2), wanted), tier.reserve(path_of(1, 2), wanted)
    assert (fill(tier, first), fill(tier, second)) == (2, 2)
    assert [tier.cache.num_parts(component) for component in (ATTENTION, WINDOW, STATE)] == [2, 2, 1]


def test_full_states_make_room_among_states_and_never_beyond_old_ends(tier: HybridTier) -> None:
    for number in range(4):
        store(tier, path_of(number))
    tier.unlock(tier.lock(path_of(0)))
    assert store(tier, path_of(9)) == 1
    assert [tier.cache.match(path_of(number)) for number in (0, 1, 2, 3, 9)] == [1, 0, 1, 1, 1]


def test_states_that_nobody_needs_make_room_before_ends_do(tier: HybridTier) -> None:
    store(tier, path_of(7))
    store(tier, path_of(1, 2, 3), {'full': range(3), 'swa': range(3), 'mamba': range(3)})
    assert store(tier, path_of(8)) == 1
    assert [tier.cache.match(path_of(*blocks)) for blocks in ((7,), (1, 2, 3), (1, 2), (8,))] == [1, 3, 2, 1]


def test_locks_everywhere_make_a_writer_go_without(tier: HybridTier) -> None:
    locks = []
    for number in range(4):
        store(tier, path_of(number))
        locks.append(tier.lock(path_of(number)))
    assert store(tier, path_of(9)) == 0
    for lock in locks:
        tier.unlock(lock)
    assert store(tier, path_of(9)) == 1


def test_blocks_that_a_writer_builds_on_stay_until_it_ends(tier: HybridTier) -> None:
    store(tier, path_of(1, 2))
    write = tier.reserve(path_of(1, 2, 3), {'full': [2], 'swa': [2], 'mamba': [2]})
    for component in (ATTENTION, WINDOW, STATE):
        tier.evict(component, 9)
    assert fill(tier, write) == 3


def test_blocks_that_no_match_reaches_yet_stay_for_the_writer_that_completes_them(tier: HybridTier) -> None:
    store(tier, path_of(1, 2))
    store(tier, path_of(1, 2, 3, 4))
    tier.evict(ATTENTION, 1)
    write = tier.reserve(path_of(1, 2, 3, 4), {'full': [3], 'swa': [3], 'mamba': [3]})
    tier.evict(ATTENTION, 9)
    assert fill(tier, write) == 4


def test_end_of_a_long_prefix_gets_the_window_and_the_state_when_not_all_fit(open_tier: MakeTier) -> None:
    tier = open_tier({ATTENTION: 16, WINDOW: 2, STATE: 1})
    assert store(tier, path_of(1, 2, 3, 4, 5), dict.fromkeys(['full', 'swa', 'mamba'], range(5))) == 5


def test_cut_under_a_reader_is_a_miss_at_once_and_frees_with_its_lock(tier: HybridTier) -> None:
    store(tier, path_of(1, 2))
    lock = tier.lock(path_of(1, 2))
    tier.cut(path_of(1, 2), 0)
    assert tier.cache.match(path_of(1, 2)) == 0
    assert tier.read(lock.parts(STATE)[0], np.zeros(64, np.uint8))
    assert store(tier, path_of(1, 2)) == 0
    tier.unlock(lock)
    assert store(tier, path_of(1, 2)) == 2


def test_notes_per_token_come_back_at_their_absolute_positions(open_tier: MakeTier) -> None:
    tier = open_tier({ATTENTION: 16, WINDOW: 8, STATE: 4, POSITIONS: 16})
    for path in (path_of(5, 6, 7), path_of(5, 6, 7, 7, 8), path_of(5, 6, 9)):
        added = range(tier.cache.match(path), path.num_blocks)
        write = tier.reserve(path, {component.name: added for component in tier.cache.components})
        checksums = {}
        for part in write.slots:
            view = tier.view(write, part)
            if part.component is POSITIONS:
                view.view(np.int32)[:] = np.arange(4 * part.index, 4 * part.index + 4)
            checksums[part] = checksum(view)
        assert tier.publish(write, checksums) == path.num_blocks
    tier.evict(WINDOW, 1)
    lock = tier.lock(path_of(5, 6, 7, 7, 8, 1))
    notes = [np.zeros(16, np.uint8) for _ in lock.parts(POSITIONS)]
    assert all(tier.read(part, out) for part, out in zip(lock.parts(POSITIONS), notes, strict=True))
    assert np.concatenate(notes).view(np.int32).tolist() == list(range(20))
    tier.unlock(lock)


def test_books_of_a_component_add_up_while_parts_are_written_locked_and_evicted(tier: HybridTier) -> None:
    store(tier, path_of(1, 2))
    store(tier, path_of(3))
    lock = tier.lock(path_of(1, 2))
    write = tier.reserve(path_of(9), {'full': [0], 'swa': [0], 'mamba': [0]})
    usages = [tier.usage(component) for component in (ATTENTION, WINDOW, STATE)]
    assert [(usage.capacity_bytes, usage.used_bytes, usage.evictable_bytes) for usage in usages] == [
        (16 * 64, 4 * 64, 64),
        (8 * 64, 4 * 64, 64),
        (4 * 64, 3 * 64, 64),
    ]
    tier.cancel(write)
    tier.unlock(lock)
    assert tier.evict(STATE, 2) == 2
    usages = [tier.usage(component) for component in (ATTENTION, WINDOW, STATE)]
    assert [(usage.num_blocks, usage.num_hits, usage.num_evictions) for usage in usages] == [
        (1, 2, 2),
        (1, 2, 2),
        (0, 1, 2),
    ]


def test_every_component_needs_a_store() -> None:
    with pytest.raises(StoreError, match='expected one per component'):
        HybridTier(components=(ATTENTION, STATE), stores={}, policy=LruPolicy())
