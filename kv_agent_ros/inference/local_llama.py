"""The Llama network on torch CPU: token ids and KV buffers in, logits of the last tokens out.

Knows neither text nor caches: a prefix that is already in a buffer counts as computed.
Touvron et al. 2023 (Llama), Su et al. 2021 (RoPE), Ainslie et al. 2023 (grouped queries).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
import torch.nn.functional as F

from kv_agent_ros.inference.llama_config import LlamaConfig, rotary_frequencies
from kv_agent_ros.inference.local_linear import Linear
from kv_agent_ros.kvcache.block import TokenArray

Logits = npt.NDArray[np.float32]  # (vocab_size,), of a batch (num_sequences, vocab_size)
QueryListener = Callable[[int, Tensor], None]  # layer, rotated queries (num_heads, num_tokens, head_dim)


def ignore_queries(layer: int, queries: Tensor) -> None:
    """Listens to nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """One decoder layer; query, key and value rows are fused, as are gate and up."""

    attention_norm: Tensor  # (hidden,)
    qkv: Linear  # hidden → (num_heads + 2 * num_kv_heads) * head_dim
    output: Linear  # num_heads * head_dim → hidden
    mlp_norm: Tensor  # (hidden,)
    gate_up: Linear  # hidden → 2 * intermediate
    down: Linear  # intermediate → hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaWeights:
    """The whole network."""

    embedding: Tensor  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # (hidden,)
    head: Linear  # hidden → vocab


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The next `tokens` of one sequence, whose `start` tokens before are in its buffer."""

    tokens: TokenArray
    buffer: KVBuffer
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span:
    """Where one sequence's tokens lie in a batch, and what they may look at."""

    rows: slice
    positions: Tensor  # (num_tokens,)
    buffer: KVBuffer
    start: int
    end: int
    mask: Tensor | None


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

    def forward(
        self, tokens: TokenArray, buffer: KVBuffer, start: int, on_queries: QueryListener = ignore_queries
    ) -> Logits:
        """Compute `tokens` in rows [start, start + len(tokens)); the buffer must hold the `start` tokens before.

        Their keys and values join the buffer. Returns the logits of the last one.
        """
        logits: Logits = self.forward_batch([Part(tokens=tokens, buffer=buffer, start=start)], on_queries)[0]
        return logits

    @torch.inference_mode()
    def forward_batch(self, parts: Sequence[Part], on_queries: QueryListener = ignore_queries) -> Logits:
        """One pass over the next tokens of several sequences; the logits of the last token of each, (parts, vocab).

        The weights are read once for all; each sequence attends over its own buffer.
        """
        spans = self._spans(parts)
        tokens = torch.from_numpy(np.concatenate([part.tokens for part in parts]))
        positions = torch.cat([span.positions for span in spans])
        rotation = (self._cos[positions], self._sin[positions])
        hidden = F.embedding(tokens, self._weights.embedding)
        last_rows = [span.rows.stop - 1 for span in spans]
        for index, layer in enumerate(self._weights.layers):
            rotated, values = self._project(layer, self._norm(hidden, layer.attention_norm), rotation)
            on_queries(index, rotated[: self.config.num_heads])
            mixed = [self._attention(index, span, rotated[:, span.rows], values[:, span.rows]) for span in spans]
            if index == self.config.num_layers - 1:
                hidden = hidden[last_rows]  # nobody reads what the top layer makes of the others
            hidden += layer.output(torch.cat(mixed) if len(mixed) > 1 else mixed[0])
            hidden += self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        return self._weights.head(self._norm(hidden, self._weights.norm)).contiguous().numpy()

    def _spans(self, parts: Sequence[Part]) -> list[_Span]:
        spans = []
        first_row = 0
        for part in parts:
            end = part.start + len(part.tokens)
            part.buffer.ensure(end, part.start)
            position = part.start + part.buffer.dropped_tokens
            spans.append(
                _Span(
                    rows=slice(first_row, first_row + len(part.tokens)),
                    positions=torch.arange(position, position + len(part.tokens)),
                    buffer=part.buffer,
                    start=part.start,
                    end=end,
                    mask=self._causal_mask(part.start, end),
                )
            )
            first_row += len(part.tokens)
        return spans

    def _causal_mask(self, start: int, end: int) -> Tensor | None:
        """(group * num_tokens, end), 0 where a query may look and -inf where it may not; None: everywhere."""
        if end - start == 1:
            return None
        allowed = torch.zeros((end - start, end))
        allowed.masked_fill_(torch.ones_like(allowed, dtype=torch.bool).triu(start + 1), float('-inf'))
        return allowed.repeat(self.config.num_heads // self.config.num_kv_heads, 1)

    def _project(self, layer: LayerWeights, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The rotated queries and keys (num_heads + num_kv_heads, num_tokens, head_dim), and the values."""
        heads = layer.qkv(hidden).reshape(hidden.shape[0], -1, self.config.head_dim).transpose(0, 1)
        num_rotated = self.config.num_heads + self.config.num_kv_heads
        return _rotate(heads[:num_rotated], *rotation), heads[num_rotated:]

    def _attention(self, index: int, span: _Span, rotated: Tensor, values: Tensor) -> Tensor:
        """What one sequence's queries gather, (num_tokens, num_heads * head_dim); its keys and values are kept.

        In the top layer only the last token's does, which sees all.
        """
        config = self.config
        is_top = index == config.num_layers - 1
        num_tokens = 1 if is_top else rotated.shape[1]
        cached = span.buffer.values[:, index, :, : span.end]
        cached[0, :, span.start :] = rotated[config.num_heads :]
        cached[1, :, span.start :] = values
        # The query heads that share a KV head become further rows of one query: no copy of K and V.
        queries = rotated[: config.num_heads, -num_tokens:]
        grouped = queries.reshape(1, config.num_kv_heads, -1, config.head_dim)
        mask = _with_padding(None if is_top else span.mask, span.buffer.padding[index], grouped.shape[2], span.end)
        mixed = F.scaled_dot_product_attention(grouped, cached[0][None], cached[1][None], attn_mask=mask)
        return mixed.view(config.num_heads, num_tokens, config.head_dim).transpose(0, 1).reshape(num_tokens, -1)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = layer.gate_up(hidden).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up))

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (num_heads, num_tokens, head_dim); the two halves of a head are the two coordinates."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _with_padding(mask: Tensor | None, padding: Tensor, num_rows: int, end: int) -> Tensor | None:
    """The causal mask, and where heads hold different tokens one mask for each KV head."""
    num_padded = padding.shape[1]
    if num_padded == 0:
        return mask
    hidden = F.pad(padding, (0, end - num_padded))[:, None].expand(-1, num_rows, -1)
    return hidden if mask is None else mask + hidden
