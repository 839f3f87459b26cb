"""Which tokens each head keeps of a session that is longer than its budget.

Decides from scores alone; where they come from is importance.py's matter. Xiao et al. 2024 (sinks), Zhang et al. 2023
(heavy hitters beside a recent window), Feng et al. 2024 (budgets between heads, with a safeguard).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.importance import FloatArray
from kv_agent_ros.kvcache.sparse_kv import BoolArray, SparseKV

ScoreArray = npt.NDArray[np.float64]

MIN_SINKS = 4
DIFFUSE_PART = 8  # a head is diffuse when its best eighth of the tokens …
DIFFUSE_MASS = 0.5  # … draws less than half of its attention; any bound up to .65 finds the same heads of SmolLM2


class Budget(Protocol):
    """How many tokens a head keeps on average."""

    @property
    def name(self) -> str:
        """Part of the namespace of what was kept."""
        ...

    def of(self, num_tokens: int) -> int:
        """The budget of a session of this length, in tokens."""
        ...


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The same for every length."""

    num_tokens: int

    @property
    def name(self) -> str:
        return f'tokens={self.num_tokens}'

    def of(self, num_tokens: int) -> int:
        return min(self.num_tokens, num_tokens)


@dataclass(frozen=True, slots=True)
class ShareBudget:
    """A share of the session, 0 to 1."""

    share: float

    @property
    def name(self) -> str:
        return f'share={self.share!r}'

    def of(self, num_tokens: int) -> int:
        return int(min(self.share, 1.0) * num_tokens)


class HeadBudgets(Enum):
    """Whether the heads of one layer lend each other room."""

    EQUAL = 'equal'
    """Every head keeps the budget: what an engine without ragged heads can hold."""
    SHARED = 'shared'
    """Each keeps `head_safeguard` of it; the rest goes where the attention is."""


class Pooling(Enum):
    """Where the score of a token is the mean of its neighbourhood, so that neighbours survive together."""

    NO_HEAD = 'no_head'
    """Single tokens everywhere."""
    DIFFUSE_HEADS = 'diffuse_heads'
    """Where attention is spread thin: the best single tokens there are noise, and only them is a biased sample."""
    ALL_HEADS = 'all_heads'
    """Everywhere, as SnapKV does."""


class Positions(Enum):
    """Where the kept tokens stand for the tokens that come after them."""

    ORIGINAL = 'original'
    """Where they stood: distances stay true."""
    FROM_ZERO = 'from_zero'
    """At 0, 1, 2, …: a session can go on beyond the longest context of its model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SparsePolicy:
    """What is kept. Every field that changes it is part of `variant`. Raises BadRequestError for impossible values."""

    budget: Budget
    num_sinks: int = MIN_SINKS
    recent_tokens: int = 32
    pooling: Pooling = Pooling.DIFFUSE_HEADS
    pooling_tokens: int = 5  # odd
    head_budgets: HeadBudgets = HeadBudgets.EQUAL
    head_safeguard: float = 0.2
    positions: Positions = Positions.ORIGINAL
    interval_tokens: int = 256  # a session is compressed whenever its length is a multiple
    min_retained_mass: float = 0.0  # below it the KV stays full
    max_output_error: float = math.inf  # above it the KV stays full

    def __post_init__(self) -> None:
        if self.num_sinks < MIN_SINKS or self.recent_tokens < 1 or self.interval_tokens < 1:
            raise BadRequestError(
                f'sparse policy: expected at least {MIN_SINKS} sinks, 1 recent token and intervals of 1, got {self}'
            )
        if self.pooling_tokens < 1 or self.pooling_tokens % 2 == 0 or not 0 <= self.head_safeguard <= 1:
            raise BadRequestError(f'sparse policy: expected odd pooling and a safeguard of 0 to 1, got {self}')

    @property
    def variant(self) -> str:
        """Names what this policy keeps, for KVNamespace.variant."""
        heads = f'{self.head_budgets.value}:{self.head_safeguard!r}'
        return (
            f'sparse/1 {self.budget.name} sinks={self.num_sinks} recent={self.recent_tokens} '
            f'pooling={self.pooling.value}:{self.pooling_tokens} heads={heads} interval={self.interval_tokens} '
            f'positions={self.positions.value} '
            f'mass={self.min_retained_mass!r} error={self.max_output_error!r}'
        )

    def points(self, num_tokens: int) -> Iterator[int]:
        """The lengths, longest first, at which a session of `num_tokens` was compressed."""
        for length in range(num_tokens - num_tokens % self.interval_tokens, 0, -self.interval_tokens):
            if self.num_sinks + self.recent_tokens <= self.budget.of(length) < length:
                yield length


def select(kv: SparseKV, importance: FloatArray, policy: SparsePolicy) -> BoolArray:
    """The rows to keep, (num_layers, num_kv_heads, num_rows), from the importance of each.

    Sinks and the recent window first, then the most important; equals go to the earlier token; importance that is not
    finite is least. A larger budget keeps a superset. Raises BadRequestError for a budget below sinks and window.
    """
    budget = policy.budget.of(kv.num_tokens)
    if importance.shape != kv.positions.shape:
        raise BadRequestError(f'importance: expected a score for each of {kv.positions.shape}, got {importance.shape}')
    if budget < min(policy.num_sinks + policy.recent_tokens, kv.num_tokens):
        raise BadRequestError(
            f'sparse budget: expected at least {policy.num_sinks} sinks and {policy.recent_tokens} recent tokens, '
            f'got {budget} of {kv.num_tokens} tokens; raise the budget or keep full KV'
        )
    finite = np.where(np.isfinite(importance), importance, 0.0).astype(np.float64)
    score = np.where(_is_pooled(finite, policy.pooling), _pooled(finite, policy.pooling_tokens), finite)
    score[~np.isfinite(importance)] = np.finfo(np.float64).min
    score[(kv.positions < policy.num_sinks) | (kv.positions >= kv.num_tokens - policy.recent_tokens)] = np.inf
    score[~kv.in_use] = -np.inf
    if policy.head_budgets is HeadBudgets.SHARED:
        safe = max(int(policy.head_safeguard * budget), policy.num_sinks + policy.recent_tokens)
        score[_best(score, safe) & kv.in_use] = np.inf
        num_layers, num_kv_heads, _ = score.shape
        together = _best(score.reshape(num_layers, 1, -1), budget * num_kv_heads)
        return together.reshape(score.shape) & kv.in_use
    return _best(score, budget) & kv.in_use


def _best(score: ScoreArray, num_best: int) -> BoolArray:
    """The best of the last axis; equals go to the first."""
    order = np.argsort(-score, axis=-1, kind='stable')[..., :num_best]
    best = np.zeros(score.shape, dtype=np.bool_)
    np.put_along_axis(best, order, True, axis=-1)
    return best


def _is_pooled(score: ScoreArray, pooling: Pooling) -> BoolArray:
    """(num_layers, num_kv_heads, 1); does not look at the budget, so that a larger one keeps a superset."""
    if pooling is not Pooling.DIFFUSE_HEADS:
        return np.full((*score.shape[:2], 1), pooling is Pooling.ALL_HEADS)
    num_best = max(1, score.shape[2] // DIFFUSE_PART)
    drawn = np.maximum(score, 0.0)
    best = np.partition(drawn, -num_best, axis=2)[..., -num_best:] if score.shape[2] else drawn
    return np.asarray(best.sum(axis=2, keepdims=True) < DIFFUSE_MASS * drawn.sum(axis=2, keepdims=True))


def _pooled(score: ScoreArray, width: int) -> ScoreArray:
    """Mean over `width` neighbours, fewer at the ends."""
    summed = np.cumsum(np.pad(score, ((0, 0), (0, 0), (1, 0))), axis=2)
    middle = np.arange(score.shape[2])
    start, end = np.maximum(middle - width // 2, 0), np.minimum(middle + width // 2 + 1, len(middle))
    return np.asarray((summed[..., end] - summed[..., start]) / (end - start))
