"""How different methods score the tokens of a recorded context, which they keep, and what the future loses by it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks._attention import Recording
from kv_agent_ros.kvcache.importance import LOOK_AHEAD_QUERIES, FloatArray, causal_attention, look_ahead
from kv_agent_ros.kvcache.sparse import importance_ahead
from kv_agent_ros.kvcache.sparse_kv import BoolArray, SparseKV
from kv_agent_ros.kvcache.sparse_policy import HeadBudgets, Pooling, ShareBudget, SparsePolicy, select

OURS = 'ours'
ORACLE = 'oracle'
SNAPKV = 'SnapKV'
PEERS = ('random', 'recent only', 'StreamingLLM', 'H2O', SNAPKV, 'SnapKV without pooling', 'observed attention')
ABLATIONS = ('ours, heads share budgets', 'ours, observed with half-life', 'ours, no head pooled')
SNAPKV_QUERIES = 64
HALF_LIFE = 32.0
STEP = 256  # queries of a chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one method loses on one text."""

    mass: float
    error: float


def policy_of(budget: float, **changes: object) -> SparsePolicy:
    """The default policy with this budget."""
    return replace(SparsePolicy(budget=ShareBudget(budget)), **changes)


def by_kv_head(per_head: FloatArray, num_kv_heads: int) -> FloatArray:
    """Mean of the query heads that share a KV head; (num_heads, num_keys) to (num_kv_heads, num_keys)."""
    return per_head.reshape(num_kv_heads, -1, per_head.shape[1]).mean(axis=1)


def observed_scores(recording: Recording) -> dict[str, FloatArray]:
    """The scores of all methods that look at attention where it was asked, each (layers, KV heads, tokens)."""
    layers: dict[str, list[FloatArray]] = {}
    num_tokens = recording.num_context
    for queries, keys in zip(recording.queries[:, :, :num_tokens], recording.keys[:, :, :num_tokens], strict=True):
        summed, faded = np.zeros((2, len(queries), num_tokens), dtype=np.float32)
        for start in range(0, num_tokens, STEP):
            end = min(start + STEP, num_tokens)
            attention = causal_attention(queries[:, start:end], keys[:, :end], start)
            age = num_tokens - 1 - np.arange(start, end)
            summed[:, :end] += attention.sum(axis=1)
            faded[:, :end] += np.matmul((0.5 ** (age / HALF_LIFE)).astype(np.float32), attention)
        last = causal_attention(queries[:, -SNAPKV_QUERIES:], keys, num_tokens - SNAPKV_QUERIES).mean(axis=1)
        could_see = np.arange(num_tokens, 0, -1)
        weight_that_sees = np.cumsum(0.5 ** (np.arange(num_tokens) / HALF_LIFE))[::-1]
        for name, score in (
            ('H2O', summed),
            ('observed attention', summed / could_see),
            ('ours, observed with half-life', faded / weight_that_sees),
            (SNAPKV, last),
        ):
            layers.setdefault(name, []).append(by_kv_head(score, len(keys)))
    return {name: np.stack(scores) for name, scores in layers.items()}


def oracle_scores(recording: Recording) -> FloatArray:
    """How the future queries really look at the context."""
    first = recording.num_context
    scores = [
        by_kv_head(causal_attention(queries[:, first:], keys, first)[:, :, :first].mean(axis=1), len(keys))
        for queries, keys in zip(recording.queries, recording.keys, strict=True)
    ]
    return np.stack(scores)


def our_scores(recording: Recording, kv: SparseKV, frequencies: np.ndarray) -> FloatArray:
    """What the library does: the last queries, moved ahead."""
    first = recording.num_context - LOOK_AHEAD_QUERIES
    queries = recording.queries[:, :, first : recording.num_context]
    return importance_ahead(kv, look_ahead(queries, first, frequencies))


def kept_rows(kv: SparseKV, scores: dict[str, FloatArray], budget: float, seed: int) -> Iterator[tuple[str, BoolArray]]:
    """What each method keeps. Peers get our sinks and window as well where they have none, which makes them better."""
    ours, plain = policy_of(budget), policy_of(budget, pooling=Pooling.NO_HEAD)
    shape = kv.positions.shape
    yield OURS, select(kv, scores[OURS], ours)
    yield ABLATIONS[0], select(kv, scores[OURS], policy_of(budget, head_budgets=HeadBudgets.SHARED))
    yield ABLATIONS[1], select(kv, scores[ABLATIONS[1]], ours)
    yield ABLATIONS[2], select(kv, scores[OURS], plain)
    for name in ('H2O', 'observed attention'):
        yield name, select(kv, scores[name], plain)
    window = policy_of(budget, recent_tokens=SNAPKV_QUERIES, pooling=Pooling.NO_HEAD)
    yield SNAPKV, select(kv, scores[SNAPKV], replace(window, pooling=Pooling.ALL_HEADS))
    yield 'SnapKV without pooling', select(kv, scores[SNAPKV], window)
    yield 'random', select(kv, np.random.default_rng(seed).random(shape), plain)
    yield 'StreamingLLM', select(kv, kv.positions.astype(np.float32), plain)
    yield 'recent only', kv.positions >= kv.num_tokens - int(budget * kv.num_tokens)
    in_order = np.argsort(-scores[ORACLE], axis=2, kind='stable')
    yield ORACLE, np.argsort(in_order, axis=2) < int(budget * kv.num_tokens)


def future_costs(recording: Recording, kept: dict[str, BoolArray]) -> dict[str, Cost]:
    """The loss of the queries that really came, means over layers and heads."""
    first = recording.num_context
    num_layers, num_kv_heads, num_tokens, _ = recording.keys.shape
    group = recording.queries.shape[1] // num_kv_heads
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in kept}
    later = np.ones(num_tokens - first, dtype=np.bool_)
    for layer, head in np.ndindex(num_layers, num_kv_heads):
        queries = recording.queries[layer, head * group : (head + 1) * group, first:]
        values = recording.values[layer, head]
        attention = causal_attention(queries, recording.keys[layer, head, None], first)
        output = attention @ values
        norm = (output**2).sum(axis=(1, 2))
        for name, rows in kept.items():
            held = np.flatnonzero(np.concatenate((rows[layer, head], later)))
            left = attention[:, :, held]
            mass = left.sum(axis=2, keepdims=True)
            lost = (((left @ values[held]) / np.maximum(mass, 1e-12) - output) ** 2).sum(axis=(1, 2))
            costs[name].append((float(mass.mean()), float((lost / norm).mean())))
    return {
        name: Cost(mass=float(np.mean([m for m, _ in each])), error=float(np.mean([e for _, e in each])))
        for name, each in costs.items()
    }
