"""The tree against a model that knows nothing of runs, splits and queues: a set of prefixes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
import numpy as np
import pytest

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.eviction import BlockUse, LruPolicy, Rank, SessionLruPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock, RadixPrefixCache

Blocks = tuple[int, ...]  # one number per block


class NoteUses:
    """LRU that keeps what it was asked last."""

    last: BlockUse

    def rank(self, use: BlockUse) -> Rank:
        self.last = use
        return (0, use.last_used)


def path_of(blocks: Blocks, root: bytes = b'a') -> TokenPath:
    return TokenPath(root=root, tokens=np.array([[n, n + 1] for n in blocks], '<i4').tobytes(), block_tokens=2)


def filled(*paths: Blocks) -> RadixPrefixCache:
    tree = RadixPrefixCache(LruPolicy())
    for blocks in paths:
        tree.insert(path_of(blocks))
    return tree


def test_match_ends_inside_a_run_where_the_tokens_differ() -> None:
    tree = filled((1, 2, 3, 4))
    assert tree.match(path_of((1, 2, 9, 4))) == 2


def test_two_paths_share_their_head_once() -> None:
    tree = filled((1, 2, 3), (1, 2, 4))
    assert tree.num_blocks == 4


def test_roots_never_share_blocks() -> None:
    tree = filled((1, 2))
    assert tree.match(path_of((1, 2), root=b'b')) == 0


def test_insert_returns_only_what_was_not_there() -> None:
    tree = filled((1, 2))
    assert tree.insert(path_of((1, 2, 3))) == 1


def test_insert_refuses_blocks_of_another_size_under_one_root() -> None:
    with pytest.raises(StoreError, match='expected blocks of 8 bytes in this namespace, got 4'):
        filled((1, 2)).insert(TokenPath(root=b'a', tokens=bytes(8), block_tokens=1))


def test_eviction_takes_the_tail_of_the_longest_unused_path_first() -> None:
    tree = filled((1, 2, 3), (1, 5, 6))
    assert tree.evict(3) == [path_of((1, 2, 3)).keys()[2], path_of((1, 2)).keys()[1], path_of((1, 5, 6)).keys()[2]]


def test_locked_node_cannot_be_evicted_even_as_a_leaf() -> None:
    tree = filled((1,))
    tree.lock(path_of((1,)))
    assert tree.evict(1) == []


def test_lock_inside_a_run_leaves_the_rest_evictable() -> None:
    tree = filled((1, 2, 3))
    tree.lock(path_of((1,)))
    assert tree.evict(9) == [path_of((1, 2, 3)).keys()[2], path_of((1, 2, 3)).keys()[1]]
    assert tree.num_evictable_blocks == 0


def test_second_unlock_of_one_handle_does_nothing() -> None:
    tree = filled((1, 2))
    first, _second = tree.lock(path_of((1, 2))), tree.lock(path_of((1, 2)))
    tree.unlock(first)
    tree.unlock(first)
    assert tree.evict(9) == []


def test_cut_under_a_lock_is_a_miss_at_once_and_leaves_with_the_lock() -> None:
    tree = filled((1, 2, 3))
    lock = tree.lock(path_of((1, 2)))
    assert tree.cut(path_of((1, 2, 3)), 1) == [path_of((1, 2, 3)).keys()[2]]
    assert tree.match(path_of((1, 2, 3))) == 1
    assert tree.insert(path_of((1, 2))) == 0
    assert tree.unlock(lock) == [path_of((1, 2)).keys()[1]]
    assert tree.insert(path_of((1, 2))) == 1


def test_insert_of_a_known_prefix_does_not_count_as_use_of_what_follows() -> None:
    tree = filled((1, 2), (3,), (1,))
    assert tree.evict(1) == [path_of((1, 2)).keys()[1]]


def test_lock_counts_as_use() -> None:
    tree = filled((1,), (2,))
    tree.unlock(tree.lock(path_of((1,))))
    assert tree.evict(1) == list(path_of((2,)).keys())


def test_runs_that_were_used_at_different_times_stay_apart() -> None:
    tree = filled((1, 2), (9,))
    whole = tree.lock(path_of((1, 2)))
    tree.unlock(tree.lock(path_of((9,))))
    tree.unlock(tree.lock(path_of((1,))))
    tree.unlock(whole)
    assert tree.evict(3) == [path_of((1, 2)).keys()[1], *path_of((9,)).keys(), *path_of((1,)).keys()]


def test_session_references_decide_before_age() -> None:
    old, young = path_of((1,)), path_of((2,))
    referenced = set(old.keys())
    tree = RadixPrefixCache(SessionLruPolicy(lambda key: key in referenced))
    for path in (old, young):
        tree.insert(path)
    assert tree.evict(1) == list(young.keys())
    tree.insert(young)
    referenced.clear()
    tree.reorder()
    assert tree.evict(1) == list(old.keys())


def test_a_block_that_comes_back_brings_its_number_of_uses() -> None:
    policy = NoteUses()
    tree = RadixPrefixCache(policy, num_ghosts=1)
    for blocks in ((1, 2), (3,)):
        tree.insert(path_of(blocks))
    tree.unlock(tree.lock(path_of((1, 2))))
    assert tree.evict(3) == [*path_of((3,)).keys(), *reversed(path_of((1, 2)).keys())]
    tree.insert(path_of((1, 2)))
    assert tree.victim_key() == path_of((1, 2)).keys()[1]
    assert policy.last.num_uses == 1  # only the block that left last is remembered, and it is the first one
    tree.evict(1)
    assert tree.victim_key() == path_of((1,)).keys()[0]
    assert (policy.last.num_uses, policy.last.depth) == (3, 0)
    tree.check_integrity()


def test_a_hold_is_no_use() -> None:
    policy = NoteUses()
    tree = RadixPrefixCache(policy)
    tree.insert(path_of((1,)), priority=7)
    tree.unlock(tree.hold(path_of((1,))))
    tree.insert(path_of((1,)))
    tree.evict(1)
    assert (policy.last.num_uses, policy.last.first_used, policy.last.last_used) == (1, 1, 2)
    assert policy.last.priority == 7


SEQUENCES = st.lists(st.integers(0, 2), max_size=7).map(tuple)


class TreeMachine(RuleBasedStateMachine):
    """Every operation, compared with sets of prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixPrefixCache(LruPolicy())
        self.used: dict[Blocks, int] = {}  # prefix -> when it was used last
        self.doomed: set[Blocks] = set()
        self.locks: list[tuple[PathLock, Blocks]] = []
        self.tick = 0

    def matched(self, blocks: Blocks) -> Blocks:
        end = 0
        while end < len(blocks) and blocks[: end + 1] in self.used:
            end += 1
        return blocks[:end]

    def touch(self, blocks: Blocks) -> None:
        self.tick += 1
        self.used.update({blocks[: end + 1]: self.tick for end in range(len(blocks))})

    def is_locked(self, prefix: Blocks) -> bool:
        return any(held[: len(prefix)] == prefix for _, held in self.locks)

    def keys(self, prefixes: set[Blocks]) -> set[bytes]:
        return {path_of(prefix).keys()[-1] for prefix in prefixes}

    @rule(blocks=SEQUENCES)
    def insert(self, blocks: Blocks) -> None:
        found = self.matched(blocks)
        added = self.tree.insert(path_of(blocks))
        if blocks[: len(found) + 1] in self.doomed:
            assert added == 0
        else:
            assert added == len(blocks) - len(found)
            self.touch(blocks)

    @rule(blocks=SEQUENCES)
    def match(self, blocks: Blocks) -> None:
        assert self.tree.match(path_of(blocks)) == len(self.matched(blocks))

    @rule(blocks=SEQUENCES)
    def lock(self, blocks: Blocks) -> None:
        found = self.matched(blocks)
        lock = self.tree.lock(path_of(blocks))
        assert lock.keys == path_of(found).keys()
        self.locks.append((lock, found))
        self.touch(found)

    @rule(index=st.integers(0, 20))
    def unlock(self, index: int) -> None:
        if not self.locks:
            return
        lock, _ = self.locks.pop(index % len(self.locks))
        gone = {prefix for prefix in self.doomed if not self.is_locked(prefix)}
        assert set(self.tree.unlock(lock)) == self.keys(gone)
        assert self.tree.unlock(lock) == []
        self.doomed -= gone

    @rule(num_blocks=st.integers(0, 5))
    def evict(self, num_blocks: int) -> None:
        removed = self.tree.evict(num_blocks)
        num_evictable = sum(not self.is_locked(prefix) for prefix in self.used)
        assert len(removed) == min(num_blocks, num_evictable)
        for key in removed:
            leaves = [
                prefix
                for prefix in self.used
                if not self.is_locked(prefix) and not any(other[:-1] == prefix for other in self.used)
            ]
            (victim,) = (prefix for prefix in leaves if path_of(prefix).keys()[-1] == key)
            assert self.used[victim] == min(self.used[prefix] for prefix in leaves)
            del self.used[victim]

    @rule(blocks=SEQUENCES, num_kept=st.integers(0, 6))
    def cut(self, blocks: Blocks, num_kept: int) -> None:
        removed = self.tree.cut(path_of(blocks), num_kept)
        if len(self.matched(blocks)) > num_kept:
            self.forget({prefix for prefix in self.used if prefix[: num_kept + 1] == blocks[: num_kept + 1]}, removed)
        else:
            assert removed == []

    @rule()
    def clear(self) -> None:
        self.forget(set(self.used), self.tree.clear())

    def forget(self, prefixes: set[Blocks], removed: list[bytes]) -> None:
        doomed = {prefix for prefix in prefixes if self.is_locked(prefix)}
        assert set(removed) == self.keys(prefixes - doomed)
        self.doomed |= doomed
        for prefix in prefixes:
            del self.used[prefix]

    @invariant()
    def books_agree(self) -> None:
        self.tree.check_integrity()
        assert set(self.tree.all_keys()) == self.keys(set(self.used) | self.doomed)
        assert self.tree.num_evictable_blocks == sum(not self.is_locked(prefix) for prefix in self.used)


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
