"""What the tree promises, one sentence at a time; any order of operations is in test_radix_tree_properties."""

import numpy as np
import pytest

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.eviction import BlockUse, LruPolicy, Rank, SessionLruPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache

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


def test_a_block_is_evicted_between_two_of_one_run_when_its_turn_is_between_theirs() -> None:
    referenced = set(path_of((1, 2)).keys())
    tree = RadixPrefixCache(SessionLruPolicy(lambda key: key in referenced))
    for blocks in ((1, 2, 3), (9,)):
        tree.insert(path_of(blocks))
    first, second, third = path_of((1, 2, 3)).keys()
    assert tree.evict(4) == [third, *path_of((9,)).keys(), second, first]


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


def test_candidates_from_one_prefix_share_it_and_leave_one_by_one() -> None:
    tree = filled((1, 2))
    branches = [(1, 2, 10, n) for n in (3, 4, 5)]
    holds = [tree.hold(path_of((1, 2))) for _ in branches]
    assert [tree.insert(path_of(blocks)) for blocks in branches] == [2, 1, 1]
    assert tree.num_blocks == 6
    assert tree.cut(path_of(branches[1]), 3) == [path_of(branches[1]).keys()[3]]
    assert [tree.match(path_of(blocks)) for blocks in branches] == [4, 3, 4]
    for hold in holds:
        tree.unlock(hold)
    assert len(tree.evict(9)) == 5


def test_nothing_is_hashed_until_somebody_asks() -> None:
    tree = filled((1, 2, 3), (1, 2, 4))
    lock = tree.lock(path_of((1, 2, 3)))
    tree.match(path_of((1, 5)))
    assert not any(node._keys for node in tree._nodes())
    assert lock.keys == path_of((1, 2, 3)).keys()


def test_keys_of_a_lock_outlive_it_only_when_asked_for_before() -> None:
    tree = filled((1, 2))
    asked, unasked = tree.lock(path_of((1, 2))), tree.lock(path_of((1,)))
    assert asked.keys == path_of((1, 2)).keys()
    tree.unlock(asked)
    tree.unlock(unasked)
    assert asked.keys == path_of((1, 2)).keys()
    with pytest.raises(StoreError, match='expected a first call before unlock'):
        assert unasked.keys


def test_equal_keys_of_different_tokens_are_no_hit() -> None:
    honest = path_of((1, 2))
    forged = TokenPath(root=b'a', tokens=path_of((3, 4)).tokens, block_tokens=2, hashed_keys=honest.keys())
    tree = filled()
    tree.insert(honest)
    assert forged.keys() == honest.keys()
    assert tree.match(forged) == 0


def test_priority_of_a_path_is_the_highest_it_was_inserted_with() -> None:
    policy = NoteUses()
    tree = RadixPrefixCache(policy)
    tree.insert(path_of((1, 2)), priority=2)
    tree.insert(path_of((1, 3)), priority=5)
    assert tree.evict(1) == [path_of((1, 2)).keys()[1]]
    tree.evict(1)
    assert tree.victim_key() == path_of((1,)).keys()[0]
    assert policy.last.priority == 5
