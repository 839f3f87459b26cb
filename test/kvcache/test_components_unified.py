"""The unified tree against a model that knows nothing of nodes, queues and wants: prefixes and the parts they have."""

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
import numpy as np
import pytest

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.components import Component, Part, full_attention, sliding_window, state_snapshot
from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.unified import ComponentLock, UnifiedPrefixCache

Blocks = tuple[int, ...]  # one number per block

LAYOUT = BlockLayout(shape=(2, 1, 1, 4, 2), dtype='float32')
ATTENTION = full_attention(LAYOUT)
WINDOW = sliding_window(LAYOUT, window_tokens=6)  # reaches 5 tokens back: two blocks of 4
STATE = state_snapshot(8, 'float32')
COMPONENTS = (ATTENTION, WINDOW, STATE)


def path_of(blocks: Iterable[int]) -> TokenPath:
    tokens = np.repeat(np.array(list(blocks), '<i4'), 4)
    return TokenPath(root=b'model', tokens=tokens.tobytes(), block_tokens=4)


def insert(cache: UnifiedPrefixCache, blocks: Blocks, window: Iterable[int], state: Iterable[int]) -> int:
    """Everything of full attention, and these blocks' other parts; returns the number of parts that were added."""
    written = {'full': range(len(blocks)), 'swa': tuple(window), 'mamba': tuple(state)}
    return len(cache.insert(path_of(blocks), written))


def filled(*paths: Blocks) -> UnifiedPrefixCache:
    """Each path with the window and the state of its end."""
    cache = UnifiedPrefixCache(components=COMPONENTS, policy=LruPolicy())
    for blocks in paths:
        insert(cache, blocks, range(len(blocks) - 2, len(blocks)), [len(blocks) - 1])
    return cache


def names(parts: Iterable[Part]) -> list[tuple[str, int]]:
    return [(part.component.name, part.index) for part in parts]


def test_match_ends_at_the_deepest_boundary_that_all_components_accept_not_where_the_tokens_end() -> None:
    cache = filled((1, 2, 3, 4))
    assert insert(cache, (1, 2, 3, 4), window=[0, 1], state=[1]) == 3
    assert cache.match(path_of((1, 2, 3, 4, 5))) == 4
    assert cache.match(path_of((1, 2, 3, 9))) == 2  # the state after block 2 was not kept
    assert cache.match(path_of((1, 9))) == 0


def test_hit_with_a_hole_in_the_window_is_shorter() -> None:
    cache = filled((1, 2), (1, 2, 3, 4))
    assert insert(cache, (1, 2, 3, 4, 5, 6, 7), window=[6], state=[6]) == 0
    assert cache.match(path_of((1, 2, 3, 4, 5, 6, 7))) == 4


def test_commit_publishes_nothing_beyond_the_last_complete_boundary() -> None:
    cache = UnifiedPrefixCache(components=COMPONENTS, policy=LruPolicy())
    assert insert(cache, (1, 2, 3, 4), window=[0, 1, 2, 3], state=[1]) == 5
    assert cache.num_parts(ATTENTION) == 2
    assert cache.match(path_of((1, 2, 3, 4))) == 2


def test_commit_without_the_parts_of_full_attention_publishes_nothing() -> None:
    cache = UnifiedPrefixCache(components=COMPONENTS, policy=LruPolicy())
    assert cache.insert(path_of((1, 2)), {'swa': [0, 1], 'mamba': [1]}) == ()


def test_part_that_was_lost_can_be_brought_back_alone() -> None:
    cache = filled((1, 2), (1, 2, 3, 4))
    cache.evict(STATE, 1)
    assert cache.match(path_of((1, 2))) == 0
    assert insert(cache, (1, 2), window=[], state=[1]) == 1
    assert cache.match(path_of((1, 2))) == 2


def test_states_and_windows_that_no_end_or_branch_needs_go_first() -> None:
    cache = filled((1, 2), (1, 2, 3), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 7, 8))
    assert cache.num_parts(STATE) == 4
    assert cache.evict(STATE, 2) == 2
    assert names(cache.take_removed()) == [('mamba', 1), ('mamba', 2)]
    assert cache.evict(WINDOW, 2) == 2
    assert names(cache.take_removed()) == [('swa', 0), ('swa', 1)]
    assert cache.match(path_of((1, 2, 3, 4, 5, 6))) == cache.match(path_of((1, 2, 3, 4, 7, 8))) == 6


def test_branch_point_keeps_its_state_while_longer_unused_states_go() -> None:
    cache = filled((1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6), (1, 2, 7))
    cache.evict(STATE, 1)
    assert names(cache.take_removed()) == [('mamba', 3)]
    assert cache.match(path_of((1, 2))) == 2


def test_state_of_an_end_leaves_with_its_block_and_everything_on_it() -> None:
    cache = filled((1, 2), (3, 4))
    assert cache.evict(STATE, 1) == 1
    assert names(cache.take_removed()) == [('mamba', 1), ('swa', 1), ('full', 1)]


def test_blocks_where_no_match_can_end_are_evicted_before_older_ones() -> None:
    cache = filled((9,), (1, 2, 3))
    cache.unlock(cache.lock(path_of((9,))))
    cache.unlock(cache.lock(path_of((1, 2, 3))))
    cache.cut(path_of((1, 2, 3)), 2)
    cache.take_removed()
    cache.evict(ATTENTION, 2)
    assert names(cache.take_removed()) == [('swa', 1), ('full', 1), ('full', 0)]
    assert cache.match(path_of((9,))) == 1


def test_lock_holds_the_path_the_window_and_one_state() -> None:
    cache = filled((1, 2), (1, 2, 3, 4))
    lock = cache.lock(path_of((1, 2, 3, 4, 5)))
    assert names(lock.parts(ATTENTION)) == [('full', 0), ('full', 1), ('full', 2), ('full', 3)]
    assert names(lock.parts(WINDOW)) == [('swa', 2), ('swa', 3)]
    assert names(lock.parts(STATE)) == [('mamba', 3)]
    assert (cache.evict(ATTENTION, 9), cache.evict(WINDOW, 9), cache.evict(STATE, 9)) == (0, 2, 1)
    assert cache.match(path_of((1, 2, 3, 4))) == 4


def test_locked_node_is_not_evicted_even_as_a_leaf() -> None:
    cache = filled((1,))
    lock = cache.lock(path_of((1,)))
    assert [cache.evict(component, 1) for component in COMPONENTS] == [0, 0, 0]
    cache.unlock(lock)
    assert cache.evict(STATE, 1) == 1


def test_copied_state_can_be_let_go_before_the_rest() -> None:
    cache = filled((1, 2))
    lock = cache.lock(path_of((1, 2)))
    cache.unlock_component(lock, STATE)
    cache.unlock_component(lock, STATE)
    assert cache.evict(STATE, 1) == 1
    assert names(cache.take_removed()) == [('mamba', 1)]
    cache.unlock(lock)
    cache.unlock(lock)
    cache.check_integrity()
    assert cache.num_locks == 0


def test_writer_keeps_blocks_that_no_match_reaches_yet() -> None:
    cache = filled((1, 2), (1, 2, 3, 4))
    cache.evict(ATTENTION, 1)
    lock = cache.hold(path_of((1, 2, 3, 4)))
    assert lock.num_blocks == 3
    assert cache.evict(ATTENTION, 9) == 0
    assert cache.insert(path_of((1, 2, 3, 4)), {'full': [3], 'swa': [3], 'mamba': [3]})
    cache.unlock(lock)
    assert cache.match(path_of((1, 2, 3, 4))) == 4


def test_cut_blocks_under_a_lock_are_nobody_elses() -> None:
    cache = filled((1, 2))
    reader = cache.lock(path_of((1, 2)))
    cache.cut(path_of((1, 2)), 1)
    writer = cache.hold(path_of((1, 2)))
    assert names(writer.parts(WINDOW)) == [('swa', 0)]
    assert insert(cache, (1, 2), window=[0, 1], state=[1]) == 0
    cache.unlock(reader)
    assert names(cache.take_removed()) == [('mamba', 1), ('swa', 1), ('full', 1)]
    cache.unlock(writer)
    cache.check_integrity()


def test_full_attention_cannot_be_released_alone() -> None:
    cache = filled((1,))
    with pytest.raises(StoreError, match='expected a component beside full attention'):
        cache.unlock_component(cache.lock(path_of((1,))), ATTENTION)


def test_components_must_have_full_attention_and_different_names() -> None:
    with pytest.raises(StoreError, match="expected one 'full' and different names"):
        UnifiedPrefixCache(components=(WINDOW, STATE), policy=LruPolicy())


def test_model_of_full_attention_alone_is_an_ordinary_tree() -> None:
    cache = UnifiedPrefixCache(components=(ATTENTION,), policy=LruPolicy())
    assert len(cache.insert(path_of((1, 2, 3)), {'full': [0, 1, 2]})) == 3
    assert cache.match(path_of((1, 2, 9))) == 2
    assert cache.evict(ATTENTION, 1) == 1


BLOCKS = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
NUMBERS = st.just(set(range(5))) | st.sets(st.integers(0, 4))


class UnifiedMachine(RuleBasedStateMachine):
    """The model: which prefixes each component has; what may leave is judged by what was locked and needed."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = UnifiedPrefixCache(components=COMPONENTS, policy=LruPolicy())
        self.here: dict[str, set[Blocks]] = {'full': set(), 'swa': set(), 'mamba': set()}
        self.locks: list[tuple[ComponentLock, dict[str, set[Blocks]]]] = []
        self.prefixes: dict[bytes, Blocks] = {}
        self.doomed: set[Blocks] = set()  # cut while they were locked

    def locked(self, name: str) -> set[Blocks]:
        return {prefix for _, held in self.locks for prefix in held[name]}

    def deepest(self, blocks: Blocks, here: dict[str, set[Blocks]]) -> int:
        """By definition: the longest prefix for which every component has what it needs."""
        return max(
            num
            for num in range(len(blocks) + 1)
            if all(blocks[: index + 1] in here[c.name] for c in COMPONENTS for index in c.needed(num))
        )

    def live(self, name: str, span: int) -> set[Blocks]:
        full = self.here['full']
        children = {prefix: sum(other[:-1] == prefix for other in full if len(other) > 1) for prefix in full}
        ends = [prefix for prefix, num in children.items() if num != 1]
        return {end[: len(end) - back] for end in ends for back in range(min(span, len(end)))} & self.here[name]

    def take(self) -> list[tuple[str, Blocks]]:
        gone = [(part.component.name, self.prefixes[part.block_key]) for part in self.cache.take_removed()]
        for name, prefix in gone:
            assert prefix not in self.locked(name)
            self.here[name].remove(prefix)
        self.doomed &= self.here['full']
        return gone

    def visible(self) -> dict[str, set[Blocks]]:
        return {name: here - self.doomed for name, here in self.here.items()}

    @rule(blocks=BLOCKS, window=NUMBERS, state=NUMBERS, full=NUMBERS)
    def insert(self, blocks: Blocks, window: set[int], state: set[int], full: set[int]) -> None:
        written = {'full': full, 'swa': window, 'mamba': state}
        visible = self.visible()
        offered = {
            name: here | {blocks[: index + 1] for index in written[name] if index < len(blocks)}
            for name, here in visible.items()
        }
        end = self.deepest(blocks, offered)
        if {blocks[: index + 1] for index in range(end)} & self.doomed:
            end = 0
        path = path_of(blocks)
        self.prefixes |= {key: blocks[: index + 1] for index, key in enumerate(path.keys())}
        added = {(part.component.name, blocks[: part.index + 1]) for part in self.cache.insert(path, written)}
        published = {blocks[: index + 1] for index in range(end)}
        assert added == {(name, prefix) for name in offered for prefix in (offered[name] - visible[name]) & published}
        for name, prefix in added:
            self.here[name].add(prefix)

    @rule(blocks=BLOCKS, is_writer=st.booleans())
    def lock(self, blocks: Blocks, is_writer: bool) -> None:
        path = path_of(blocks)
        lock = self.cache.hold(path) if is_writer else self.cache.lock(path)
        if not is_writer:
            assert lock.num_blocks == self.deepest(blocks, self.visible())
            assert all(names(lock.parts(c)) == [(c.name, i) for i in c.needed(lock.num_blocks)] for c in COMPONENTS)
        held = {c.name: {blocks[: part.index + 1] for part in lock.parts(c)} for c in COMPONENTS}
        self.locks.append((lock, held))

    @rule(number=st.integers(0, 9), name=st.sampled_from(['swa', 'mamba']))
    def unlock_component(self, number: int, name: str) -> None:
        if self.locks:
            lock, held = self.locks[number % len(self.locks)]
            self.cache.unlock_component(lock, next(c for c in COMPONENTS if c.name == name))
            held[name] = set()

    @rule(number=st.integers(0, 9))
    def unlock(self, number: int) -> None:
        if self.locks:
            lock, _ = self.locks.pop(number % len(self.locks))
            self.cache.unlock(lock)
            self.cache.unlock(lock)

    @rule(component=st.sampled_from(COMPONENTS), num_parts=st.integers(1, 3))
    def evict(self, component: Component, num_parts: int) -> None:
        name = component.name
        before = {key: set(here) for key, here in self.here.items()}
        live, locked = self.live(name, component.span_blocks), self.locked(name)
        num_evicted = self.cache.evict(component, num_parts)
        gone = self.take()
        assert num_evicted == sum(part == name for part, _ in gone)
        free = before[name] - locked
        assert num_evicted >= min(num_parts, len(free))
        assert self.cache.num_evictable_parts(component) == len(self.here[name] - locked)
        blocks_gone = {prefix for part, prefix in gone if part == 'full'}
        assert not {other[:-1] for other in self.here['full']} & blocks_gone  # tails first
        if name != 'full' and free - live:
            spare_gone = {prefix for part, prefix in gone if part == name} & (free - live)
            assert len(spare_gone) >= min(num_parts, len(free - live))

    @rule(blocks=BLOCKS)
    def match(self, blocks: Blocks) -> None:
        assert self.cache.match(path_of(blocks)) == self.deepest(blocks, self.visible())

    @rule(blocks=BLOCKS, num_kept=st.integers(0, 4))
    def cut(self, blocks: Blocks, num_kept: int) -> None:
        self.cache.cut(path_of(blocks), num_kept)
        self.take()
        head = blocks[: num_kept + 1]
        below = {prefix for prefix in self.here['full'] if len(blocks) > num_kept and prefix[: len(head)] == head}
        assert below <= self.locked('full')
        self.doomed |= below

    @invariant()
    def books_are_those_of_the_model(self) -> None:
        self.take()
        self.cache.check_integrity()
        assert {c.name: self.cache.num_parts(c) for c in COMPONENTS} == {k: len(v) for k, v in self.here.items()}

    def teardown(self) -> None:
        for lock, _ in self.locks:
            self.cache.unlock(lock)
        self.locks = []
        self.take()
        assert self.cache.num_locks == 0
        self.evict(ATTENTION, 99)
        assert not any(self.here.values())


UnifiedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestUnifiedMachine = UnifiedMachine.TestCase
