from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
import hashlib
from pathlib import Path

import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import KVNamespace, SessionKey
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.importance import causal_attention
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.sparse import SparseKVCache, retention
from kv_agent_ros.kvcache.sparse_kv import SparseKV
from kv_agent_ros.kvcache.sparse_policy import HeadBudgets, ShareBudget, SparsePolicy, TokenBudget
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap
from kv_agent_ros.kvcache.storage.tiered import BackingTier, Tier

NAMESPACE = KVNamespace(
    model='tiny', revision='1', dtype='float32', num_layers=2, num_kv_heads=2, head_dim=8, block_tokens=16
)
ROBOT = SessionKey(robot_id='robot1', session_id='planner')
OTHER_ROBOT = SessionKey(robot_id='robot2', session_id='planner')
QUARTER = SparsePolicy(budget=ShareBudget(0.25), recent_tokens=8, interval_tokens=64)


@contextmanager
def manager_of(directory: Path, num_blocks: int = 64) -> Iterator[KVCacheManager]:
    sessions = SessionIndex()
    arena = SharedArena.create(num_blocks * NAMESPACE.block_bytes)
    with KVCacheManager(
        dram=DramTier(store=HostStore(arena), policy=SessionLruPolicy(sessions.is_referenced)),
        sessions=sessions,
        backing=(BackingTier.open(tier=Tier.SSD, store=DiskStore.open(directory, 1 << 24)),),
    ) as manager:
        yield manager
        assert manager.flush(30.0)
        manager.check_integrity()
        assert manager.num_locks == 0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[KVCacheManager]:
    with manager_of(tmp_path) as manager:
        yield manager


def sparse_cache(manager: KVCacheManager, policy: SparsePolicy = QUARTER) -> SparseKVCache:
    return SparseKVCache(cache=manager, segments=SegmentMap(), namespace=NAMESPACE, policy=policy)


def tokens_of(num_tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, num_tokens).astype(np.int32)


def rows_of(tokens: np.ndarray) -> np.ndarray:
    """Keys and values (2, num_layers, num_kv_heads, num_tokens, head_dim) that follow from the tokens."""
    seed = int.from_bytes(hashlib.sha256(tokens.tobytes()).digest()[:4], 'big')
    return np.random.default_rng(seed).standard_normal((2, 2, 2, len(tokens), 8)).astype(np.float32)


def queries_of(seed: int = 5) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal((2, 4, 6, 8)).astype(np.float32)


def importance_of(kv: SparseKV, queries: np.ndarray) -> np.ndarray:
    """The attention of the queries, mean of each group."""
    layers = [
        causal_attention(asked, keys, keys.shape[1]).reshape(2, -1, keys.shape[1]).mean(axis=1)
        for asked, keys in zip(queries, kv.keys, strict=True)
    ]
    return np.stack(layers)


def compressed(cache: SparseKVCache, tokens: np.ndarray) -> SparseKV:
    kv = SparseKV.full(*rows_of(tokens))
    return cache.compress(kv, importance_of(kv, queries_of()), queries_of()).kv


def write_full(manager: KVCacheManager, tokens: np.ndarray) -> int:
    """Publish the full KV of the tokens the way an engine does."""
    lease = manager.reserve(NAMESPACE, ROBOT, tokens)
    segments = SegmentMap()
    checksums = []
    for index, slot in enumerate(lease.slots):
        view = segments.slot(slot)
        view[:] = index
        checksums.append(checksum(view))
    return manager.commit(lease.lease_id, checksums)


def matched(manager: KVCacheManager, namespace: KVNamespace, tokens: np.ndarray) -> int:
    lease = manager.acquire(namespace, ROBOT, tokens)
    manager.release(lease.lease_id)
    return lease.matched_tokens


def assert_equal(one: SparseKV | None, other: SparseKV) -> None:
    assert one is not None
    assert one.num_tokens == other.num_tokens
    for name in ('keys', 'values', 'positions', 'counts'):
        assert (getattr(one, name) == getattr(other, name)).all(), name


@pytest.mark.parametrize('heads', HeadBudgets)
def test_stored_session_is_found_again_bit_by_bit(manager: KVCacheManager, heads: HeadBudgets) -> None:
    cache, tokens = sparse_cache(manager, replace(QUARTER, head_budgets=heads)), tokens_of(128)
    kv = compressed(cache, tokens)

    assert cache.store(ROBOT, tokens, kv)

    assert_equal(cache.fetch(OTHER_ROBOT, np.append(tokens, tokens_of(30, seed=1))), kv)


def test_stored_session_outlives_memory_and_the_process(tmp_path: Path) -> None:
    tokens = tokens_of(128)
    with manager_of(tmp_path) as manager:
        kv = compressed(sparse_cache(manager), tokens)
        assert sparse_cache(manager).store(ROBOT, tokens, kv)
        assert manager.flush(30.0)

    with manager_of(tmp_path) as manager:
        assert_equal(sparse_cache(manager).fetch(ROBOT, tokens), kv)


def test_longest_stored_prefix_is_found(manager: KVCacheManager) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(300)
    for length in (64, 192):
        assert cache.store(ROBOT, tokens[:length], compressed(cache, tokens[:length]))

    found = cache.fetch(ROBOT, tokens)

    assert_equal(found, compressed(cache, tokens[:192]))


def test_sparse_blocks_never_satisfy_a_lookup_of_full_ones_nor_the_other_way_round(manager: KVCacheManager) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(128)
    assert cache.store(ROBOT, tokens, compressed(cache, tokens))
    assert matched(manager, NAMESPACE, np.append(tokens, 1)) == 0
    assert matched(manager, cache.namespace, np.append(tokens, 1)) == 0  # not even with the variant's own name

    other = tokens_of(128, seed=3)
    assert write_full(manager, other) == 8
    assert cache.fetch(ROBOT, other) is None
    assert matched(manager, NAMESPACE, np.append(other, 1)) == 128


@pytest.mark.parametrize(
    'policy',
    [
        replace(QUARTER, budget=ShareBudget(0.26)),
        replace(QUARTER, budget=TokenBudget(32)),
        replace(QUARTER, recent_tokens=9),
        replace(QUARTER, head_budgets=HeadBudgets.SHARED),
    ],
)
def test_session_of_another_policy_is_not_found(manager: KVCacheManager, policy: SparsePolicy) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(128)
    assert cache.store(ROBOT, tokens, compressed(cache, tokens))

    assert sparse_cache(manager, policy).fetch(ROBOT, tokens) is None


@pytest.mark.parametrize('changed', [0, 63, 127])
def test_session_that_differs_in_one_token_is_not_found(manager: KVCacheManager, changed: int) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(128)
    assert cache.store(ROBOT, tokens, compressed(cache, tokens))
    tokens[changed] += 1

    assert cache.fetch(ROBOT, tokens) is None


def test_compressing_leaves_locked_pinned_and_shared_blocks_whole(manager: KVCacheManager) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(128)
    write_full(manager, tokens)
    assert manager.pin(ROBOT, 60.0) == 8
    lease = manager.acquire(NAMESPACE, OTHER_ROBOT, np.append(tokens, 1))
    before = [SegmentMap().slot(slot).tobytes() for slot in lease.slots]

    for start in range(64):  # far more than fits beside the locked blocks
        text = np.append(tokens[:64], tokens_of(64, seed=start))
        cache.store(ROBOT, text, compressed(cache, text))

    assert [SegmentMap().slot(slot).tobytes() for slot in lease.slots] == before
    manager.release(lease.lease_id)
    assert matched(manager, NAMESPACE, np.append(tokens, 1)) == 128
    manager.end_session(ROBOT)


def test_store_that_finds_no_room_publishes_nothing_that_can_be_read(tmp_path: Path) -> None:
    tokens = tokens_of(512)
    with manager_of(tmp_path, num_blocks=4) as manager:
        cache = sparse_cache(manager)

        assert not cache.store(ROBOT, tokens, compressed(cache, tokens))

        assert cache.fetch(ROBOT, tokens) is None


def test_block_with_flipped_bits_is_a_miss_and_leaves_the_cache(manager: KVCacheManager) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(128)
    kv = compressed(cache, tokens)
    assert cache.store(ROBOT, tokens, kv)
    assert manager.flush(30.0)
    path = np.append(cache._path(tokens), 0).astype(np.int32)
    lease = manager.acquire(cache.namespace, ROBOT, path)
    SegmentMap().slot(lease.slots[1])[100] ^= 1
    manager.release(lease.lease_id)

    assert cache.fetch(ROBOT, tokens) is None

    assert manager.stats().num_checksum_failures == 1
    assert cache.store(ROBOT, tokens, kv)
    assert_equal(cache.fetch(ROBOT, tokens), kv)


def test_only_what_the_policy_makes_is_stored(manager: KVCacheManager) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(128)
    kv = compressed(cache, tokens)

    later = kv.extended(*rows_of(tokens_of(64)))
    grown = (np.append(tokens, tokens_of(64)), later)
    for wrong_tokens, wrong_kv in ((tokens[:64], kv), (tokens, SparseKV.full(*rows_of(tokens))), grown):
        with pytest.raises(BadRequestError, match='sparse KV: expected'):
            cache.store(ROBOT, wrong_tokens, wrong_kv)


def grown(cache: SparseKVCache, tokens: np.ndarray, chunk_tokens: int) -> SparseKV:
    """A session that grows chunk by chunk and is compressed at every multiple of 64 tokens."""
    rows = rows_of(tokens)
    kv = SparseKV.full(*rows[..., :0, :])
    while kv.num_tokens < len(tokens):
        kv = kv.extended(*rows[..., kv.num_tokens : kv.num_tokens + chunk_tokens, :])
        if kv.num_tokens in QUARTER.points(kv.num_tokens):
            kv = cache.compress(kv, importance_of(kv, queries_of()), queries_of()).kv
    return kv


def test_growing_session_stays_within_its_budget_and_ends_the_same_for_every_chunk_size(
    manager: KVCacheManager,
) -> None:
    cache, tokens = sparse_cache(manager), tokens_of(64 * 9)

    kv = grown(cache, tokens, 64)

    assert (kv.counts == 144).all()
    assert kv.positions[1, 1, :4].tolist() == [0, 1, 2, 3]
    assert kv.positions[1, 1, -8:].tolist() == list(range(64 * 9 - 8, 64 * 9))
    assert (np.diff(kv.positions, axis=2) > 0).all()
    for chunk_tokens in (64, 32, 16, 1):
        assert_equal(grown(cache, tokens, chunk_tokens), kv)


def test_retention_is_what_plain_attention_over_the_kept_tokens_gives(manager: KVCacheManager) -> None:
    tokens = tokens_of(40)
    kv = SparseKV.full(*rows_of(tokens))
    kept = np.random.default_rng(2).random((2, 2, 40)) < 0.5
    queries = queries_of()

    cost = retention(kv, kept, queries)

    masses, errors = [], []
    for layer in range(2):
        for head in range(4):
            weights = np.exp(queries[layer, head] @ kv.keys[layer, head // 2].T / np.sqrt(8))
            chosen = weights * kept[layer, head // 2]
            full = weights / weights.sum(axis=1, keepdims=True) @ kv.values[layer, head // 2]
            sparse = chosen / chosen.sum(axis=1, keepdims=True) @ kv.values[layer, head // 2]
            masses.append((chosen.sum(axis=1) / weights.sum(axis=1)).mean())
            errors.append(((full - sparse) ** 2).sum() / (full**2).sum())
    assert cost.mass == pytest.approx(np.mean(masses), rel=1e-4)
    assert cost.output_error == pytest.approx(np.mean(errors), rel=1e-4)


def test_keeping_everything_costs_nothing() -> None:
    kv = SparseKV.full(*rows_of(tokens_of(40)))

    cost = retention(kv, kv.in_use, queries_of())

    assert cost.mass == pytest.approx(1.0)
    assert cost.output_error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize('bound', [{'min_retained_mass': 0.99}, {'max_output_error': 1e-4}])
def test_session_that_would_lose_too_much_stays_full(manager: KVCacheManager, bound: dict[str, float]) -> None:
    kv = SparseKV.full(*rows_of(tokens_of(128)))
    importance = importance_of(kv, queries_of())

    strict = sparse_cache(manager, replace(QUARTER, **bound)).compress(kv, importance, queries_of())
    loose = sparse_cache(manager).compress(kv, importance, queries_of())

    assert strict.kv is kv
    assert strict.retention == loose.retention
    assert loose.kv.counts.max() == 32


def test_more_important_tokens_retain_more_than_the_least_important_ones(manager: KVCacheManager) -> None:
    kv = SparseKV.full(*rows_of(tokens_of(128)))
    importance = importance_of(kv, queries_of())

    best = sparse_cache(manager).compress(kv, importance, queries_of()).retention
    worst = sparse_cache(manager).compress(kv, -importance, queries_of()).retention

    assert best.mass > 2 * worst.mass
    assert best.output_error < 0.5 * worst.output_error
