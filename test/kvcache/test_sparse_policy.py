from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.sparse_kv import SparseKV
from kv_agent_ros.kvcache.sparse_policy import (
    HeadBudgets,
    Pooling,
    Positions,
    ShareBudget,
    SparsePolicy,
    TokenBudget,
    select,
)

HEADS = st.sampled_from(HeadBudgets)


def session(num_tokens: int, num_layers: int = 2, num_kv_heads: int = 3) -> SparseKV:
    keys, values = np.random.default_rng(0).standard_normal((2, num_layers, num_kv_heads, num_tokens, 4)).astype('f4')
    return SparseKV.full(keys, values)


def scores(num_tokens: int, seed: int = 1, num_layers: int = 2, num_kv_heads: int = 3) -> np.ndarray:
    """Few different values, so that ties are common, and heads of different weight."""
    random = np.random.default_rng(seed)
    weight = 1 + np.arange(num_kv_heads)[:, None]
    return (random.integers(0, 6, (num_layers, num_kv_heads, num_tokens)) * weight).astype(np.float32)


def policy(num_tokens: int, heads: HeadBudgets = HeadBudgets.EQUAL, pooling: Pooling = Pooling.NO_HEAD) -> SparsePolicy:
    return SparsePolicy(budget=TokenBudget(num_tokens), recent_tokens=8, head_budgets=heads, pooling=pooling)


@pytest.mark.parametrize('heads', HeadBudgets)
def test_sinks_and_the_recent_window_are_kept_however_unimportant(heads: HeadBudgets) -> None:
    importance = scores(100) + 1
    importance[..., :4] = importance[..., 92:] = 0

    kept = select(session(100), importance, policy(20, heads))

    assert kept[..., :4].all()
    assert kept[..., 92:].all()


def test_budget_below_sinks_and_window_is_refused() -> None:
    with pytest.raises(BadRequestError, match='at least 4 sinks and 8 recent tokens, got 11 of 100'):
        select(session(100), scores(100), policy(11))


@pytest.mark.parametrize('heads', HeadBudgets)
def test_session_within_its_budget_is_kept_whole(heads: HeadBudgets) -> None:
    assert select(session(10), scores(10), policy(20, heads)).all()


def test_every_head_keeps_its_own_most_important_tokens() -> None:
    importance = np.zeros((2, 3, 100), dtype=np.float32)
    for head in range(3):
        importance[:, head, 10 + 20 * head : 18 + 20 * head] = 1

    kept = select(session(100), importance, policy(20))

    for head in range(3):
        assert kept[0, head].nonzero()[0].tolist() == [
            *range(4),
            *range(10 + 20 * head, 18 + 20 * head),
            *range(92, 100),
        ]


def test_heads_that_share_their_budgets_keep_as_much_in_total_and_never_less_than_the_safeguard() -> None:
    importance = np.ones((2, 3, 200), dtype=np.float32)
    importance[:, 2] = 100

    kept = select(session(200), importance, policy(80, HeadBudgets.SHARED))

    assert kept.sum(axis=2).tolist() == [[24, 16, 200]] * 2


@pytest.mark.parametrize('heads', HeadBudgets)
def test_equally_important_tokens_are_kept_from_the_first_on(heads: HeadBudgets) -> None:
    kept = select(session(100), np.ones((2, 3, 100), dtype=np.float32), policy(30, heads))

    assert kept[1, 0].nonzero()[0].tolist()[:16] == list(range(16))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 99), heads=HEADS, pooling=st.sampled_from(Pooling))
def test_same_scores_keep_the_same_tokens(seed: int, heads: HeadBudgets, pooling: Pooling) -> None:
    first, second = (select(session(90), scores(90, seed), policy(30, heads, pooling)) for _ in range(2))

    assert (first == second).all()


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 99),
    small=st.integers(12, 90),
    more=st.integers(0, 30),
    heads=HEADS,
    pooling=st.sampled_from(Pooling),
)
def test_larger_budget_keeps_all_that_a_smaller_one_keeps(
    seed: int, small: int, more: int, heads: HeadBudgets, pooling: Pooling
) -> None:
    less = select(session(90), scores(90, seed), policy(small, heads, pooling))
    more_kept = select(session(90), scores(90, seed), policy(small + more, heads, pooling))

    assert (less <= more_kept).all()
    assert less.sum() == 2 * 3 * small


@pytest.mark.parametrize('broken', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('heads', HeadBudgets)
def test_importance_that_is_no_number_is_the_least(broken: float, heads: HeadBudgets) -> None:
    importance = scores(100)
    importance[:, :, 20:60] = broken

    kept = select(session(100), importance, policy(60, heads))

    assert not kept[..., 20:60].any()
    assert kept.sum() == 2 * 3 * 60


def test_importance_without_any_number_still_keeps_the_budget() -> None:
    kept = select(session(100), np.full((2, 3, 100), np.nan, dtype=np.float32), policy(30))

    assert (kept.sum(axis=2) == 30).all()


def test_importance_of_another_session_is_refused() -> None:
    with pytest.raises(BadRequestError, match='a score for each of'):
        select(session(100), scores(99), policy(30))


def test_pooling_lets_neighbours_of_an_important_token_survive() -> None:
    importance = np.zeros((2, 3, 100), dtype=np.float32)
    importance[..., 50] = 1

    kept = select(session(100), importance, policy(17, pooling=Pooling.ALL_HEADS))

    assert kept[0, 0].nonzero()[0].tolist() == [*range(4), *range(48, 53), *range(92, 100)]


def test_only_heads_that_look_everywhere_are_pooled_by_default() -> None:
    importance = np.full((2, 3, 100), 1e-3, dtype=np.float32)
    importance[..., 50] = 1  # nearly all that these heads look at
    importance[:, 1] = 1
    importance[:, 1, 50] = 1.5

    kept = select(session(100), importance, policy(17, pooling=Pooling.DIFFUSE_HEADS))

    assert kept[0, 0].nonzero()[0].tolist() == [*range(8), 50, *range(92, 100)]
    assert kept[0, 1].nonzero()[0].tolist() == [*range(4), *range(48, 53), *range(92, 100)]


def test_share_counts_from_the_whole_session_also_when_some_of_it_is_gone() -> None:
    kv = session(100)
    by_half = SparsePolicy(budget=ShareBudget(0.5), recent_tokens=8)
    kv = kv.taken(select(kv, scores(100), by_half)).extended(kv.keys[:, :, :20], kv.values[:, :, :20])

    again = select(kv, scores(70), by_half)

    assert kv.counts.tolist() == [[70] * 3] * 2
    assert (again.sum(axis=2) == 60).all()
    assert again[..., :4].all()
    assert again[..., 62:].all()


def test_policies_that_keep_different_tokens_have_different_names() -> None:
    plain = SparsePolicy(budget=TokenBudget(100))
    others = [
        SparsePolicy(budget=TokenBudget(101)),
        SparsePolicy(budget=ShareBudget(0.2)),
        SparsePolicy(budget=ShareBudget(0.12)),
        SparsePolicy(budget=TokenBudget(100), num_sinks=5),
        SparsePolicy(budget=TokenBudget(100), recent_tokens=31),
        SparsePolicy(budget=TokenBudget(100), pooling_tokens=7),
        SparsePolicy(budget=TokenBudget(100), pooling=Pooling.ALL_HEADS),
        SparsePolicy(budget=TokenBudget(100), head_budgets=HeadBudgets.SHARED),
        SparsePolicy(budget=TokenBudget(100), head_budgets=HeadBudgets.SHARED, head_safeguard=0.5),
        SparsePolicy(budget=TokenBudget(100), interval_tokens=128),
        SparsePolicy(budget=TokenBudget(100), positions=Positions.FROM_ZERO),
        SparsePolicy(budget=TokenBudget(100), min_retained_mass=0.5),
        SparsePolicy(budget=TokenBudget(100), max_output_error=0.5),
    ]

    assert len({each.variant for each in [plain, *others]}) == 14
    assert plain.variant != ''


@pytest.mark.parametrize(
    'fields', [{'num_sinks': 3}, {'recent_tokens': 0}, {'pooling_tokens': 4}, {'head_safeguard': 1.1}]
)
def test_impossible_policy_is_refused(fields: dict) -> None:
    with pytest.raises(BadRequestError, match='sparse policy'):
        SparsePolicy(budget=TokenBudget(100), **fields)


def test_sessions_are_compressed_at_multiples_of_the_interval_once_they_are_longer_than_the_budget() -> None:
    points = SparsePolicy(budget=TokenBudget(600), interval_tokens=256).points

    assert list(points(1500)) == [1280, 1024, 768]
    assert list(points(1024)) == [1024, 768]
    assert list(points(600)) == []
