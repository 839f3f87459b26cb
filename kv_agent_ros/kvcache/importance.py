"""Which tokens of a session its next queries will look at, from the attention of real queries. Numpy only.

Attention counts in multiples of an equal share, per query that could see the key, so that attention without any
preference scores all keys alike; old queries count less and less. Queries can also be moved to the positions that
come next, where most of what is asked for will be asked.
H2O (Zhang et al. 2023) sums attention; SnapKV (Li et al. 2024) takes the last queries where they stand.
"""

from enum import Enum
import math

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError

FloatArray = npt.NDArray[np.float32]

DEFAULT_HALF_LIFE = 32.0  # queries; best of 8 to 512 and of "never" on text that no benchmark here uses
LOOK_AHEAD_QUERIES = 128
LOOK_AHEAD_TOKENS = 64


class GroupReduction(Enum):
    """How the query heads that share a KV head become one score."""

    MEAN = 'mean'
    """Good for the mass of all heads together."""
    MAX = 'max'
    """Good for the head that needs the token most."""


class TokenImportanceEstimator:
    """How many equal shares of attention each key drew, per layer and KV head, per query that could see it.

    Costs O(queries x keys) per observation; chunks of a prefill and single steps of decoding give the same scores. A
    query ages when later ones are observed: `half_life_queries` later it counts half; math.inf lets it count forever.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        half_life_queries: float = DEFAULT_HALF_LIFE,
        reduction: GroupReduction = GroupReduction.MEAN,
    ) -> None:
        if min(num_layers, num_heads, num_kv_heads) < 1 or num_heads % num_kv_heads or not half_life_queries > 0:
            raise BadRequestError(
                'importance: expected sizes > 0, num_heads a multiple of num_kv_heads and half_life_queries > 0, '
                f'got {num_layers} layers, {num_heads} heads, {num_kv_heads} KV heads, {half_life_queries}'
            )
        self._decay = 0.5 ** (1 / half_life_queries)
        self._reduction = reduction
        self._num_kv_heads = num_kv_heads
        self._drawn = np.zeros(
            (num_layers, num_heads, 0)
        )  # attention, in equal shares, weighted by the age of its query
        self._seen = np.zeros((num_layers, num_heads, 0))  # weight of the queries that could see the key

    def observe(self, layer: int, attention: FloatArray, first_position: int) -> None:
        """Add the attention (num_heads, num_queries, num_keys) of the queries at `first_position` and after.

        Key k can be seen by queries at position k and after. Queries whose attention is not finite in every head count
        as if they had not been asked. Raises BadRequestError for a shape or layer that does not fit.
        """
        num_layers, num_heads, num_known = self._drawn.shape
        if not 0 <= layer < num_layers or attention.ndim != 3 or len(attention) != num_heads:
            raise BadRequestError(
                f'attention: expected layer < {num_layers} and ({num_heads}, queries, keys), '
                f'got layer {layer} and {attention.shape}'
            )
        _, num_queries, num_keys = attention.shape
        if num_keys > num_known:
            grown = ((0, 0), (0, 0), (0, num_keys - num_known))
            self._drawn, self._seen = np.pad(self._drawn, grown), np.pad(self._seen, grown)
        finite = np.isfinite(attention)
        if not finite.all():
            attention = np.where(finite, attention, 0)
        is_good = finite.all(axis=2).all(axis=0)
        weights = np.where(is_good, self._decay ** np.arange(num_queries - 1, -1, -1.0), 0.0)
        num_visible = np.minimum(first_position + 1 + np.arange(num_queries), num_keys)
        for totals, added in (
            (self._drawn, np.matmul((weights * num_visible).astype(attention.dtype), attention)),
            (self._seen, _weight_that_sees(weights, first_position, num_keys)),
        ):
            totals[layer] *= self._decay**num_queries
            totals[layer, :, :num_keys] += added

    def scores(self) -> FloatArray:
        """(num_layers, num_kv_heads, num_keys); 1 is an equal share, 0 also where no query could see the key."""
        per_head = np.divide(self._drawn, self._seen, out=np.zeros_like(self._drawn), where=self._seen > 0)
        num_layers, num_heads, num_keys = per_head.shape
        group = num_heads // self._num_kv_heads
        grouped = per_head.astype(np.float32).reshape(num_layers, self._num_kv_heads, group, num_keys)
        return np.asarray(grouped.mean(axis=2) if self._reduction is GroupReduction.MEAN else grouped.max(axis=2))

    def keep(self, rows: npt.NDArray[np.intp]) -> None:
        """Go on with the keys at `rows` (num_layers, num_kv_heads, num_kept) alone, renumbered 0, 1, ...

        Positions of later queries then count in that numbering too.
        """
        rows = np.repeat(rows, self._drawn.shape[1] // self._num_kv_heads, axis=1)
        self._drawn = np.take_along_axis(self._drawn, rows, axis=2)
        self._seen = np.take_along_axis(self._seen, rows, axis=2)


def _weight_that_sees(weights: npt.NDArray[np.float64], first_position: int, num_keys: int) -> npt.NDArray[np.float64]:
    """For each key the weight of the queries at its position and after."""
    after = np.append(weights[::-1].cumsum()[::-1], 0.0)
    first_that_sees = np.clip(np.arange(num_keys) - first_position, 0, len(weights))
    return np.asarray(after[first_that_sees])


def causal_attention(queries: FloatArray, keys: FloatArray, first_position: int) -> FloatArray:
    """Attention (num_heads, num_queries, num_keys) of rotated queries (num_heads, num_queries, head_dim) on rotated
    keys (num_kv_heads, num_keys, head_dim); the query at `first_position` sees keys 0 to `first_position`.
    """
    num_heads, num_queries, head_dim = queries.shape
    num_kv_heads, num_keys, _ = keys.shape
    grouped = queries.reshape(num_kv_heads, -1, head_dim) * np.float32(1 / math.sqrt(head_dim))
    products = np.matmul(grouped, keys.transpose(0, 2, 1))
    scores: FloatArray = products.reshape(num_heads, num_queries, num_keys)
    later = scores[:, :, first_position + 1 :]
    np.copyto(later, -np.inf, where=np.arange(later.shape[2]) >= np.arange(num_queries)[:, None])
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    return scores


def rotate(heads: FloatArray, by_tokens: npt.NDArray[np.int_], frequencies: npt.NDArray[np.float64]) -> FloatArray:
    """Move rotated (RoPE) vectors (..., head_dim) by `by_tokens` (...) positions, negative ones backwards.

    `frequencies`: radians per token of the head_dim / 2 pairs; the two halves of a head are the two coordinates.
    """
    angles = by_tokens[..., None] * frequencies
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def look_ahead(queries: FloatArray, first_position: int, frequencies: npt.NDArray[np.float64]) -> FloatArray:
    """The queries (..., num_queries, head_dim) as if they were asked in the LOOK_AHEAD_TOKENS positions after them.

    The content of a query changes slowly, its position does not: what the last queries asked for will be asked for
    again, from further away. A sampled form of expected attention (Devoto et al. 2025), without its Gaussian.
    """
    num_queries = queries.shape[-2]
    asked_at = first_position + np.arange(num_queries)
    moved_to = first_position + num_queries + np.arange(num_queries) % LOOK_AHEAD_TOKENS
    return rotate(queries, moved_to - asked_at, frequencies)
