"""Trees of a million blocks and of thousands of nodes on one path: no recursion, no cost that grows with the tree."""

import time

import numpy as np

from kv_agent_ros.kvcache.eviction import LruPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache

MANY = 1_000_000


def path_of(tokens: range | np.ndarray, block_tokens: int = 1) -> TokenPath:
    return TokenPath(root=b'a', tokens=np.asarray(tokens).astype('<i4').tobytes(), block_tokens=block_tokens)


def test_path_of_a_million_blocks_is_matched_cut_and_evicted_from_its_tail() -> None:
    tree = RadixPrefixCache(LruPolicy())
    path = path_of(range(MANY))
    assert tree.insert(path) == MANY
    assert tree.match(path) == MANY
    lock = tree.lock(path.head(MANY - 1_000))
    assert len(tree.evict(2_000)) == 1_000
    tree.unlock(lock)
    assert len(tree.evict(2_000)) == 2_000
    assert len(tree.cut(path, 10)) == MANY - 3_000 - 10
    assert tree.match(path) == 10
    tree.check_integrity()


def test_eviction_one_by_one_from_a_long_run_is_as_fast_as_from_a_short_one() -> None:
    times_s = {}
    for num_blocks in (2_000, MANY):
        tree = RadixPrefixCache(LruPolicy())
        tree.insert(path_of(range(num_blocks)))
        tree.evict(1)  # hashes the whole path
        times_s[num_blocks] = min(_evict_s(tree, 100) for _ in range(10))
    assert times_s[MANY] < 10 * times_s[2_000]


def test_thousands_of_nodes_on_one_path_need_no_recursion() -> None:
    tree = RadixPrefixCache(LruPolicy())
    path = path_of(range(1_500))
    tree.insert(path)
    locks = [tree.lock(path.head(end)) for end in range(1, 1_501)]
    assert len(list(tree._nodes())) == 1_500
    assert tree.evict(1) == []
    tree.check_integrity()
    assert locks[-1].keys == path.keys()
    for lock in locks:
        tree.unlock(lock)
    assert tree.evict(10) == list(reversed(path.keys()[-10:]))
    assert len(tree.clear()) == 1_490


def test_match_lock_insert_and_cut_take_as_long_in_a_tree_of_a_hundred_thousand_nodes() -> None:
    tree = RadixPrefixCache(LruPolicy())
    probes = [path_of(np.arange(100) + MANY * 10 + 1_000 * n, 2) for n in range(50)]
    small_s = _work_s(tree, probes)
    for number in range(100_000):
        tree.insert(path_of(np.array([number, 1]), 2))
    tree.evict(1)
    assert _work_s(tree, probes) < 10 * small_s


def test_match_of_1500_tokens_is_under_a_millisecond() -> None:
    path = path_of(range(94 * 16), 16)
    tree = RadixPrefixCache(LruPolicy())
    tree.insert(path)
    times_s = []
    for _ in range(50):
        start_s = time.perf_counter()
        assert tree.match(path) == 94
        times_s.append(time.perf_counter() - start_s)
    assert min(times_s) < 1e-3


def _evict_s(tree: RadixPrefixCache, num_blocks: int) -> float:
    start_s = time.thread_time()
    for _ in range(num_blocks):
        tree.evict(1)
    return time.thread_time() - start_s


def _work_s(tree: RadixPrefixCache, probes: list[TokenPath]) -> float:
    """Insert, match, lock and take out again: the fastest of ten times."""
    times_s = []
    for _ in range(10):
        start_s = time.thread_time()
        for path in probes:
            tree.insert(path)
            assert tree.match(path) == path.num_blocks
            tree.unlock(tree.lock(path))
            tree.cut(path, 0)
        times_s.append(time.thread_time() - start_s)
    return min(times_s)
