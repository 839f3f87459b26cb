"""All policies keep the contract of the tree, whatever they prefer; what each of them prefers."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.kvcache.eviction import (
    NEVER_USED,
    AgedLfuPolicy,
    BlockUse,
    EvictionPolicy,
    GhostList,
    LruPolicy,
    PastUse,
    PriorityPolicy,
    SessionsLast,
    SlruPolicy,
    TtlPolicy,
    UseObserver,
)
from kv_agent_ros.kvcache.hit_density import HitDensityPolicy
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import RadixPrefixCache

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    'lru': LruPolicy,
    'aged lfu': lambda: AgedLfuPolicy(half_life=8),
    'slru': SlruPolicy,
    'priority': PriorityPolicy,
    'ttl': lambda: TtlPolicy(max_age=5),
    'hit density': HitDensityPolicy,
    'sessions last': lambda: SessionsLast(lambda key: key[0] % 3, LruPolicy()),
    'everything referenced': lambda: SessionsLast(lambda key: 1, HitDensityPolicy()),
}
REQUESTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=30)


def path_of(*tokens: int) -> TokenPath:
    return TokenPath(root=b'r', tokens=np.array(tokens, '<i4').tobytes())


def tree_with(policy: EvictionPolicy, num_ghosts: int = 0) -> RadixPrefixCache:
    observers: tuple[UseObserver, ...] = (policy,) if isinstance(policy, HitDensityPolicy) else ()
    return RadixPrefixCache(policy, num_ghosts, observers)


def serve(tree: RadixPrefixCache, path: TokenPath, capacity: int) -> tuple[int, list[bytes]]:
    """One request as a tier serves it: blocks found, keys evicted for it."""
    lock = tree.lock(path)
    missing = min(path.num_blocks, capacity) - lock.num_blocks
    evicted = tree.evict(max(0, missing - (capacity - tree.num_blocks)))
    assert not set(evicted) & set(lock.keys)
    tree.insert(path.head(lock.num_blocks + missing))
    tree.unlock(lock)
    return lock.num_blocks, evicted


@pytest.mark.parametrize('name', POLICIES)
@settings(deadline=None, max_examples=40)
@given(requests=REQUESTS, capacity=st.integers(1, 12), num_ghosts=st.integers(0, 20))
def test_only_unlocked_tails_leave_and_room_is_always_made(
    name: str, requests: list[list[int]], capacity: int, num_ghosts: int
) -> None:
    runs = []
    for _ in range(2):
        tree = tree_with(POLICIES[name](), num_ghosts)
        runs.append([serve(tree, path_of(*tokens), capacity) for tokens in requests])
        tree.check_integrity()
        assert tree.num_blocks <= capacity
    assert runs[0] == runs[1]


@pytest.mark.parametrize('name', POLICIES)
@settings(deadline=None, max_examples=20)
@given(requests=REQUESTS)
def test_with_room_for_everything_every_block_is_missed_once(name: str, requests: list[list[int]]) -> None:
    tree = tree_with(POLICIES[name]())
    found = sum(serve(tree, path_of(*tokens), 10_000)[0] for tokens in requests)
    prefixes = [tuple(tokens[:end]) for tokens in requests for end in range(1, len(tokens) + 1)]
    assert found == len(prefixes) - len(set(prefixes))


def test_a_loop_a_little_larger_than_the_tier_gives_lru_nothing_and_hit_density_almost_everything() -> None:
    def loop(policy: EvictionPolicy) -> float:
        tree = tree_with(policy, num_ghosts=4000)
        rounds = [sum(serve(tree, path_of(*range(5 * i, 5 * i + 5)), 1000)[0] for i in range(210)) for _ in range(8)]
        return rounds[-1] / 1050

    assert loop(LruPolicy()) == 0
    assert loop(HitDensityPolicy()) > 0.8


def test_blocks_that_come_back_stay_while_others_only_pass() -> None:
    tree = tree_with(HitDensityPolicy(), num_ghosts=1000)
    lru = tree_with(LruPolicy())
    found = {'density': 0, 'lru': 0}
    for i in range(4000):
        path = path_of(i // 20 % 30) if i % 20 == 0 else path_of(1000 + i)
        found['density'] += serve(tree, path, 100)[0]
        found['lru'] += serve(lru, path, 100)[0]
    assert found['lru'] == 0
    assert found['density'] > 100


def test_what_always_comes_back_is_worth_more_than_what_came_once_and_everything_has_a_worth() -> None:
    policy = HitDensityPolicy()
    tree = RadixPrefixCache(policy, 100, (policy,))
    with np.errstate(all='raise'):
        for number in range(500):
            serve(tree, path_of(*range(40)), 60)
            serve(tree, path_of(1000 + number), 60)
    assert tree.match(path_of(*range(40))) == 40
    assert tree.match(path_of(1000)) == 0


def test_before_anything_is_learnt_twice_as_many_uses_are_worth_as_much_as_half_the_age() -> None:
    policy = HitDensityPolicy()

    def worth(age: int, num_uses: int) -> int:
        use = BlockUse(
            last_used=1000 - age,
            first_used=1,
            num_uses=num_uses,
            depth=0,
            priority=0,
            is_end=False,
            now=1000,
            find_key=lambda: b'',
        )
        return policy.rank(use)[0]

    assert worth(64, 1) > worth(256, 1)
    assert worth(256, 4) > worth(256, 1)
    assert abs(worth(256, 4) - worth(64, 1)) <= 2


def test_aged_lfu_forgets_what_was_popular_long_ago() -> None:
    tree = tree_with(AgedLfuPolicy(half_life=4))
    for _ in range(4):
        serve(tree, path_of(1), 2)
    for token in range(10, 40):
        serve(tree, path_of(token), 2)
    assert tree.match(path_of(1)) == 0


def test_slru_keeps_what_was_used_twice() -> None:
    tree = tree_with(SlruPolicy())
    for token in (1, 1, 2, 3, 4):
        serve(tree, path_of(token), 2)
    assert [tree.match(path_of(token)) for token in (1, 2, 3, 4)] == [1, 0, 0, 1]


def test_priority_decides_before_recency() -> None:
    tree = tree_with(PriorityPolicy())
    tree.insert(path_of(1), priority=5)
    tree.insert(path_of(2))
    tree.evict(1)
    assert (tree.match(path_of(1)), tree.match(path_of(2))) == (1, 0)


def test_ttl_lets_priority_count_only_among_the_expired() -> None:
    tree = tree_with(TtlPolicy(max_age=2))
    tree.insert(path_of(1), priority=5)
    tree.insert(path_of(2))
    for token in (3, 4, 5):
        tree.insert(path_of(token), priority=0)
    tree.evict(2)
    assert [tree.match(path_of(token)) for token in (1, 2, 3)] == [0, 0, 1]


def test_blocks_of_more_sessions_leave_later_and_a_closed_session_only_dereferences() -> None:
    references = {path_of(1).keys()[0]: 2, path_of(2).keys()[0]: 1}
    tree = tree_with(SessionsLast(lambda key: references.get(key, 0), LruPolicy()))
    for token in (1, 2, 3):
        tree.insert(path_of(token))
    tree.evict(1)
    assert [tree.match(path_of(token)) for token in (1, 2, 3)] == [1, 1, 0]
    references.clear()
    tree.reorder()
    tree.evict(1)
    assert [tree.match(path_of(token)) for token in (1, 2)] == [0, 1]


def test_a_ghost_brings_back_how_its_block_had_been_used() -> None:
    ghosts = GhostList(2)
    for number in (1, 2, 3):
        ghosts.remember(bytes([number]), PastUse(number, 7))
    assert [ghosts.take(bytes([number])) for number in (1, 2, 3)] == [NEVER_USED, PastUse(2, 7), PastUse(3, 7)]
    assert len(ghosts) == 0
