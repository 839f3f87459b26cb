from itertools import pairwise
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.importance import (
    GroupReduction,
    TokenImportanceEstimator,
    causal_attention,
    look_ahead,
    rotate,
)

FREQUENCIES = 100.0 ** -(np.arange(0, 8, 2) / 8)


def estimator(half_life_queries: float = math.inf, **sizes: int) -> TokenImportanceEstimator:
    return TokenImportanceEstimator(
        **({'num_layers': 1, 'num_heads': 4, 'num_kv_heads': 2} | sizes), half_life_queries=half_life_queries
    )


def uniform_attention(num_heads: int, num_tokens: int) -> np.ndarray:
    """Every query looks equally at all keys that it can see."""
    seen = np.tril(np.ones((num_tokens, num_tokens), dtype=np.float32))
    return np.broadcast_to(seen / seen.sum(axis=1, keepdims=True), (num_heads, num_tokens, num_tokens))


def random_attention(num_heads: int, num_tokens: int, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    queries, keys = random.standard_normal((2, num_heads, num_tokens, 8)).astype(np.float32)
    return causal_attention(3 * queries, keys, 0)


@pytest.mark.parametrize('half_life_queries', [math.inf, 32.0])
def test_uniform_attention_scores_all_keys_alike(half_life_queries: float) -> None:
    importance = estimator(half_life_queries)
    attention = uniform_attention(4, 200)

    importance.observe(0, attention, 0)

    assert importance.scores() == pytest.approx(1.0, abs=1e-5)
    assert attention[0].sum(axis=0)[150] < 0.1 * attention[0].sum(axis=0)[0]  # what a plain sum says


def test_key_scores_the_mean_of_its_queries_in_equal_shares() -> None:
    importance = estimator(num_heads=1, num_kv_heads=1)
    attention = np.array([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]]], dtype=np.float32)

    importance.observe(0, attention, 0)

    assert importance.scores()[0, 0] == pytest.approx([(1 + 2 * 0.5 + 3 * 0.2) / 3, (2 * 0.5 + 3 * 0.2) / 2, 3 * 0.6])


def test_query_counts_half_after_its_half_life() -> None:
    importance = estimator(half_life_queries=1.0, num_heads=1, num_kv_heads=1)

    importance.observe(0, np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32).reshape(1, 2, 2), 5)

    assert importance.scores()[0, 0] == pytest.approx([2 / 3, 4 / 3])


@settings(deadline=None, max_examples=30)
@given(
    cuts=st.lists(st.integers(1, 39), max_size=5, unique=True),
    half_life_queries=st.sampled_from([1.0, 16.0, math.inf]),
    reduction=st.sampled_from(GroupReduction),
)
def test_chunks_and_single_steps_score_like_one_pass(
    cuts: list[int], half_life_queries: float, reduction: GroupReduction
) -> None:
    attention = random_attention(4, 40)

    def scores(edges: list[int]) -> np.ndarray:
        importance = TokenImportanceEstimator(
            num_layers=1, num_heads=4, num_kv_heads=2, half_life_queries=half_life_queries, reduction=reduction
        )
        for start, end in pairwise(edges):
            importance.observe(0, attention[:, start:end, :end], start)
        return importance.scores()

    expected = scores([0, 40])
    assert scores([0, *sorted(cuts), 40]) == pytest.approx(expected, abs=1e-5)
    assert scores(list(range(41))) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(('reduction', 'expected'), [(GroupReduction.MEAN, 0.4), (GroupReduction.MAX, 0.6)])
def test_query_heads_are_reduced_within_their_group_only(reduction: GroupReduction, expected: float) -> None:
    importance = TokenImportanceEstimator(num_layers=1, num_heads=4, num_kv_heads=2, reduction=reduction)

    importance.observe(0, np.array([0.2, 0.6, 0.0, 0.0], dtype=np.float32).reshape(4, 1, 1), 0)

    assert importance.scores()[0, :, 0] == pytest.approx([expected, 0.0])


def test_layers_do_not_mix() -> None:
    importance = estimator(num_layers=2)

    importance.observe(1, np.full((4, 1, 3), 1 / 3, dtype=np.float32), 2)

    assert importance.scores()[0].max() == 0
    assert importance.scores()[1] == pytest.approx(1.0)


@pytest.mark.parametrize('broken', [math.nan, math.inf, -math.inf])
def test_query_with_broken_attention_counts_as_not_asked(broken: float) -> None:
    attention = random_attention(4, 20).copy()
    expected, importance = estimator(), estimator()
    expected.observe(0, attention[:, :19], 0)
    attention[2, 19, 3] = broken

    importance.observe(0, attention, 0)

    assert importance.scores() == pytest.approx(expected.scores())


@pytest.mark.parametrize('shape', [(4, 0, 0), (4, 0, 7), (4, 3, 0)])
def test_nothing_observed_scores_nothing(shape: tuple[int, int, int]) -> None:
    importance = estimator()

    importance.observe(0, np.zeros(shape, dtype=np.float32), 0)

    assert importance.scores().shape == (1, 2, shape[2])
    assert importance.scores().sum() == 0


def test_same_attention_gives_the_same_scores() -> None:
    results = []
    for _ in range(2):
        importance = estimator(16.0)
        importance.observe(0, random_attention(4, 50), 0)
        results.append(importance.scores().tobytes())

    assert results[0] == results[1]


def test_kept_keys_go_on_with_what_they_had() -> None:
    importance, whole = estimator(16.0), estimator(16.0)
    rows = np.array([[[0, 3, 5], [1, 2, 9]]])
    for each in (importance, whole):
        each.observe(0, random_attention(4, 10), 0)

    importance.keep(rows)

    assert importance.scores() == pytest.approx(np.take_along_axis(whole.scores(), rows, axis=2))


@pytest.mark.parametrize('shape', [(3, 1, 1), (4, 1), (4, 1, 1, 1)])
def test_attention_of_another_model_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadRequestError, match='expected layer < 1 and'):
        estimator().observe(0, np.zeros(shape, dtype=np.float32), 0)


@pytest.mark.parametrize(
    ('num_heads', 'num_kv_heads', 'half_life'), [(4, 3, 1.0), (0, 1, 1.0), (4, 2, 0.0), (4, 2, math.nan)]
)
def test_impossible_sizes_are_refused(num_heads: int, num_kv_heads: int, half_life: float) -> None:
    with pytest.raises(BadRequestError, match='importance'):
        estimator(half_life, num_heads=num_heads, num_kv_heads=num_kv_heads)


def test_causal_attention_sees_no_later_key_and_sums_to_one() -> None:
    random = np.random.default_rng(2)
    queries = random.standard_normal((4, 5, 8)).astype(np.float32)
    keys = random.standard_normal((2, 12, 8)).astype(np.float32)

    attention = causal_attention(queries, keys, 7)

    assert attention.sum(axis=2) == pytest.approx(1.0)
    assert np.triu(attention, 8).max() == 0
    row = np.exp(queries[3, 2] @ keys[1, :10].T / math.sqrt(8))
    assert attention[3, 2, :10] == pytest.approx(row / row.sum(), rel=1e-4)


def test_rotation_back_and_forth_changes_nothing_and_products_depend_on_distance_alone() -> None:
    random = np.random.default_rng(3)
    query, key = random.standard_normal((2, 1, 8)).astype(np.float32)

    def moved(heads: np.ndarray, tokens: int) -> np.ndarray:
        return rotate(heads, np.array([tokens]), FREQUENCIES)

    assert moved(moved(query, 700), -700) == pytest.approx(query, abs=1e-5)
    assert moved(query, 45) @ moved(key, 40).T == pytest.approx(moved(query, 905) @ moved(key, 900).T, abs=1e-4)


def test_look_ahead_asks_the_same_questions_from_the_next_positions() -> None:
    content = np.random.default_rng(4).standard_normal((2, 1, 8)).astype(np.float32)
    same = np.repeat(content, 100, axis=1)
    asked = rotate(same, np.arange(50, 150), FREQUENCIES)

    ahead = look_ahead(asked, 50, FREQUENCIES)

    assert ahead == pytest.approx(rotate(same, 150 + np.arange(100) % 64, FREQUENCIES), abs=1e-4)
