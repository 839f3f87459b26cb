"""A growing session on a tiny real network, against the same network with the dropped tokens masked out."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kv_agent_ros.errors import BadRequestError, UnreachableError
from kv_agent_ros.inference.local_llama import KVBuffer
from kv_agent_ros.inference.local_model import LocalModel
from kv_agent_ros.inference.local_sparse import SparseSession
from kv_agent_ros.kvcache.block import PrefixLease, SessionKey, WriteLease
from kv_agent_ros.kvcache.dram_tier import DramTier
from kv_agent_ros.kvcache.eviction import SessionLruPolicy
from kv_agent_ros.kvcache.manager import KVCacheManager
from kv_agent_ros.kvcache.session_index import SessionIndex
from kv_agent_ros.kvcache.sparse import SparseKVCache
from kv_agent_ros.kvcache.sparse_policy import HeadBudgets, Positions, ShareBudget, SparsePolicy, TokenBudget
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.segment import SegmentMap

ROBOT = SessionKey(robot_id='robot1', session_id='planner')
INTERVAL = 128


@pytest.fixture
def manager() -> Iterator[KVCacheManager]:
    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(32 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    with KVCacheManager(dram=dram, sessions=sessions) as manager:
        yield manager
        assert manager.num_locks == 0


def policy_of(
    budget: int, heads: HeadBudgets = HeadBudgets.EQUAL, positions: Positions = Positions.ORIGINAL
) -> SparsePolicy:
    return SparsePolicy(
        budget=TokenBudget(budget), head_budgets=heads, positions=positions, interval_tokens=INTERVAL, recent_tokens=16
    )


def session_of(model: LocalModel, manager: KVCacheManager, policy: SparsePolicy) -> SparseSession:
    sparse = SparseKVCache(cache=manager, segments=SegmentMap(), namespace=model.namespace(16), policy=policy)
    return SparseSession(model=model, sparse=sparse, session=ROBOT)


def tokens_of(model: LocalModel, num_tokens: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, model.llama.config.vocab_size, num_tokens).astype(np.int32)


def masked_logits(model: LocalModel, manager: KVCacheManager, policy: SparsePolicy, tokens: np.ndarray) -> np.ndarray:
    """The full network, which hides from each head what the sparse session dropped at its first interval."""
    sparse = SparseKVCache(cache=manager, segments=SegmentMap(), namespace=model.namespace(16), policy=policy)
    kept = sparse.fetch(ROBOT, tokens[:INTERVAL])
    assert kept is not None
    buffer = KVBuffer(model.llama.config)
    model.llama.forward(tokens[:INTERVAL], buffer, 0)
    buffer.padding = torch.full((*kept.counts.shape, INTERVAL), float('-inf'))
    for layer, head in np.ndindex(*kept.counts.shape):
        buffer.padding[layer, head, kept.positions[layer, head, : kept.counts[layer, head]].tolist()] = 0.0
    return model.llama.forward(tokens[INTERVAL:], buffer, INTERVAL)


@pytest.mark.parametrize('heads', HeadBudgets)
def test_sparse_session_computes_what_the_full_one_does_without_the_dropped_tokens(
    tiny_model: LocalModel, manager: KVCacheManager, heads: HeadBudgets
) -> None:
    tokens, policy = tokens_of(tiny_model, INTERVAL + 40), policy_of(48, heads)
    session = session_of(tiny_model, manager, policy)

    logits = session.extend(tokens)

    assert session.num_tokens == INTERVAL + 40
    assert session.num_rows < INTERVAL + 40
    expected = masked_logits(tiny_model, manager, policy, tokens)
    full = tiny_model.llama.forward(tokens, KVBuffer(tiny_model.llama.config), 0)
    assert np.abs(logits - expected).max() < 1e-4
    assert np.abs(logits - full).max() > 1e-3


@pytest.mark.parametrize('positions', Positions)
@pytest.mark.parametrize('heads', HeadBudgets)
def test_resumed_session_goes_on_as_if_it_had_never_stopped(
    tiny_model: LocalModel, manager: KVCacheManager, positions: Positions, heads: HeadBudgets
) -> None:
    tokens, policy = tokens_of(tiny_model, 5 * INTERVAL + 30), policy_of(64, heads, positions)
    first, later = (session_of(tiny_model, manager, policy) for _ in range(2))
    expected = first.extend(tokens)

    num_cached = later.resume(tokens)
    logits = later.extend(tokens[num_cached:])

    assert num_cached == 5 * INTERVAL
    assert later.num_rows == first.num_rows
    assert np.abs(logits - expected).max() < 1e-4


def test_new_session_has_nothing_to_resume(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    assert session_of(tiny_model, manager, policy_of(64)).resume(tokens_of(tiny_model, 300)) == 0


@pytest.mark.parametrize('chunk_tokens', [1, 50, 300])
def test_session_keeps_the_same_for_every_size_of_chunk(
    tiny_model: LocalModel, manager: KVCacheManager, chunk_tokens: int
) -> None:
    tokens = tokens_of(tiny_model, 3 * INTERVAL + 10)
    whole, cut = (session_of(tiny_model, manager, policy_of(64)) for _ in range(2))
    expected = whole.extend(tokens)

    for start in range(0, len(tokens), chunk_tokens):
        logits = cut.extend(tokens[start : start + chunk_tokens])

    assert np.abs(logits - expected).max() < 1e-3


def test_session_with_reassigned_positions_outgrows_the_context_of_its_model(
    tiny_model: LocalModel, manager: KVCacheManager
) -> None:
    tokens = tokens_of(tiny_model, 2 * tiny_model.llama.config.max_tokens)
    session = session_of(tiny_model, manager, policy_of(64, positions=Positions.FROM_ZERO))

    logits = session.extend(tokens)

    assert np.isfinite(logits).all()
    assert session.num_tokens == 2048
    assert session.num_rows == 64
    assert len(session.retentions) == 16
    assert all(0 < cost.mass <= 1 for cost in session.retentions)


def test_session_with_original_positions_ends_with_the_context_of_its_model(
    tiny_model: LocalModel, manager: KVCacheManager
) -> None:
    session = session_of(tiny_model, manager, policy_of(64))
    session.extend(tokens_of(tiny_model, 1000))

    with pytest.raises(BadRequestError, match='an end within 1024, got 25 tokens that end at 1025'):
        session.extend(tokens_of(tiny_model, 25))


def test_session_that_would_lose_too_much_stays_full_and_exact(tiny_model: LocalModel, manager: KVCacheManager) -> None:
    policy = SparsePolicy(budget=ShareBudget(0.3), interval_tokens=INTERVAL, min_retained_mass=0.9999)
    session, tokens = session_of(tiny_model, manager, policy), tokens_of(tiny_model, 300)

    logits = session.extend(tokens)

    assert session.num_rows == 300
    assert np.abs(logits - tiny_model.llama.forward(tokens, KVBuffer(tiny_model.llama.config), 0)).max() < 1e-4
    assert session_of(tiny_model, manager, policy).resume(tokens) == 0


def test_session_goes_on_when_its_cache_does_not_answer(tiny_model: LocalModel) -> None:
    class Silent(KVCacheManager):
        def acquire(self, *_: object) -> PrefixLease:
            raise UnreachableError('acquire: expected an answer, got none')

        def reserve(self, *_: object) -> WriteLease:
            raise UnreachableError('reserve: expected an answer, got none')

    sessions = SessionIndex()
    dram = DramTier(store=HostStore(SharedArena.create(1 << 20)), policy=SessionLruPolicy(sessions.is_referenced))
    with Silent(dram=dram, sessions=sessions) as silent:
        session, tokens = session_of(tiny_model, silent, policy_of(64)), tokens_of(tiny_model, 300)

        assert session.resume(tokens) == 0
        assert np.isfinite(session.extend(tokens)).all()

    assert session.num_rows == 64 + 300 - 2 * INTERVAL


def test_smollm2_mostly_says_the_same_with_a_third_of_its_kv(smollm2: LocalModel, manager: KVCacheManager) -> None:
    text = (Path(__file__).parents[2] / 'LICENSE').read_text()
    tokens = np.array(smollm2.tokenizer.encode(text, add_special_tokens=False).ids[: 3 * 256 + 20], np.int32)
    policy = SparsePolicy(budget=TokenBudget(256))
    session = session_of(smollm2, manager, policy)
    buffer = KVBuffer(smollm2.llama.config)
    session.extend(tokens[: 3 * 256])
    for start in range(0, 3 * 256, 256):
        smollm2.llama.forward(tokens[start : start + 256], buffer, start)

    steps = range(3 * 256, len(tokens))
    sparse = [int(session.extend(tokens[i : i + 1]).argmax()) for i in steps]
    full = [int(smollm2.llama.forward(tokens[i : i + 1], buffer, i).argmax()) for i in steps]

    assert session.num_rows == 256 + 20
    assert min(cost.mass for cost in session.retentions) > 0.85
    assert np.mean(np.array(sparse) == np.array(full)) >= 0.7
