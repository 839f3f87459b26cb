"""The Llama network on torch CPU: token ids and a KV buffer in, logits of the last token out.

Knows neither text nor caches: a prefix that is already in the buffer counts as computed. One sequence at a time.
Touvron et al. 2023 (Llama), Su et al. 2021 (RoPE), Ainslie et al. 2023 (grouped queries).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
import torch.nn.functional as F

from kv_agent_ros.inference.llama_config import LlamaConfig, rotary_frequencies
from kv_agent_ros.kvcache.block import TokenArray

Logits = npt.NDArray[np.float32]  # (vocab_size,)
QueryListener = Callable[[int, Tensor], None]  # layer, rotated queries (num_heads, num_tokens, head_dim)


def ignore_queries(layer: int, queries: Tensor) -> None:
    """Listens to nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """One decoder layer; query, key and value rows are fused, as are gate and up."""

    attention_norm: Tensor  # (hidden,)
    qkv: Tensor  # ((num_heads + 2 * num_kv_heads) * head_dim, hidden)
    output: Tensor  # (hidden, num_heads * head_dim)
    mlp_norm: Tensor  # (hidden,)
    gate_up: Tensor  # (2 * intermediate, hidden)
    down: Tensor  # (hidden, intermediate)


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaWeights:
    """The whole network, float32."""

    embedding: Tensor  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # (hidden,)
    head: Tensor  # (vocab, hidden)


class KVBuffer:
    """Keys and values of one sequence, `values[0]` K and `values[1]` V; grows, never shrinks.

    Tokens [s, e) of `values` have the shape of a cache block, so blocks are copied in and out without a transposition.
    After a load of sparse KV, `dropped_tokens` is how much farther a token stands than its row, and `padding` hides the
    first rows from the heads that do not use them.
    """

    def __init__(self, config: LlamaConfig) -> None:
        self._shape = (2, config.num_layers, config.num_kv_heads)
        self._head_dim = config.head_dim
        self._max_tokens = config.max_tokens
        self.values = torch.empty((*self._shape, 0, self._head_dim))
        self.dropped_tokens = 0
        self.padding = torch.zeros((*self._shape[1:], 0))  # (num_layers, num_kv_heads, num_rows), 0 or -inf

    @property
    def capacity(self) -> int:
        return int(self.values.shape[3])

    def ensure(self, num_tokens: int, kept_tokens: int) -> None:
        """Make room for `num_tokens`, keeping the first `kept_tokens`."""
        if num_tokens <= self.capacity:
            return
        capacity = min(self._max_tokens, max(num_tokens, 2 * self.capacity, 512))
        grown = torch.empty((*self._shape, capacity, self._head_dim))
        grown[:, :, :, :kept_tokens] = self.values[:, :, :, :kept_tokens]
        self.values = grown


class Llama:
    """The network with its weights; stateless apart from its rotary tables."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights) -> None:
        self.config = config
        self._weights = weights
        angles = torch.outer(
            torch.arange(config.max_tokens, dtype=torch.float32), torch.tensor(rotary_frequencies(config))
        )
        self._cos = angles.cos()  # (max_tokens, head_dim / 2)
        self._sin = angles.sin()

    @torch.inference_mode()
    def forward(
        self, tokens: TokenArray, buffer: KVBuffer, start: int, on_queries: QueryListener = ignore_queries
    ) -> Logits:
        """Compute `tokens` in rows [start, start + len(tokens)); the buffer must hold the `start` tokens before.

        Their keys and values join the buffer. Returns the logits of the last one.
        """
        end = start + len(tokens)
        buffer.ensure(end, start)
        mask = self._causal_mask(start, end)
        first = start + buffer.dropped_tokens
        rotation = (self._cos[first : first + len(tokens)], self._sin[first : first + len(tokens)])
        hidden = F.embedding(torch.from_numpy(tokens), self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            cached = buffer.values[:, index, :, :end]
            queries = self._project(layer, self._norm(hidden, layer.attention_norm), cached, rotation)
            on_queries(index, queries)
            hidden += self._attention(layer, queries, cached, _with_padding(mask, buffer.padding[index]))
            hidden += self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        logits = F.linear(self._norm(hidden[-1:], self._weights.norm), self._weights.head)[0]
        return logits.numpy()

    def _causal_mask(self, start: int, end: int) -> Tensor:
        """(group * num_tokens, end), 0 where a query may look and -inf where it may not."""
        allowed = torch.zeros((end - start, end))
        allowed.masked_fill_(torch.ones_like(allowed, dtype=torch.bool).triu(start + 1), float('-inf'))
        return allowed.repeat(self.config.num_heads // self.config.num_kv_heads, 1)

    def _project(self, layer: LayerWeights, hidden: Tensor, cached: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """The rotated queries (num_heads, num_tokens, head_dim); keys and values go to the end of `cached`."""
        config = self.config
        num_tokens = hidden.shape[0]
        heads = F.linear(hidden, layer.qkv).view(num_tokens, -1, config.head_dim).transpose(0, 1)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated = _rotate(heads[:num_rotated], *rotation)
        first_added = cached.shape[2] - num_tokens
        cached[0, :, first_added:] = rotated[config.num_heads :]
        cached[1, :, first_added:] = heads[num_rotated:]
        return rotated[: config.num_heads]

    def _attention(self, layer: LayerWeights, queries: Tensor, cached: Tensor, mask: Tensor) -> Tensor:
        config = self.config
        num_tokens = queries.shape[1]
        # The query heads that share a KV head become further rows of one query: no copy of K and V.
        grouped = queries.reshape(1, config.num_kv_heads, -1, config.head_dim)
        mixed = F.scaled_dot_product_attention(grouped, cached[0][None], cached[1][None], attn_mask=mask)
        mixed = mixed.view(config.num_heads, num_tokens, config.head_dim).transpose(0, 1).reshape(num_tokens, -1)
        return F.linear(mixed, layer.output)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = F.linear(hidden, layer.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate).mul_(up), layer.down)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (num_heads, num_tokens, head_dim); the two halves of a head are the two coordinates."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _with_padding(mask: Tensor, padding: Tensor) -> Tensor:
    """The causal mask, and where heads hold different tokens one mask for each KV head."""
    num_padded = padding.shape[1]
    if num_padded == 0:
        return mask
    return mask + F.pad(padding, (0, mask.shape[1] - num_padded))[:, None]
