"""How much a model's attention changes when its KV blocks keep fewer bits, and the fewest bits that change it little.

Measured on the model's own keys and values before any of its blocks is written so: sinks and the recent window exact,
as the policy has it, the rest through the codec. Nothing here knows the model; an engine gives the sample.
"""

from dataclasses import dataclass, replace
import math

import numpy as np

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.codec_policy import CodecPolicy
from kv_agent_ros.kvcache.rotation import Floats

WIDTHS = (2, 4, 8, 16)
# Of the worst layer: one broken layer breaks the model. Between what SmolLM2-135M did: at 4 bits 0.005 on the
# canary's text, 0.007 to 0.018 on a document and a planning session, once 0.024; at 2 bits 0.08, and 0.09 to 0.37.
MAX_ERROR = 0.04


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CanarySample:
    """Keys and values of one text of a model, and queries that look at all of it.

    Where an engine does not show its queries, its last keys do: they lie in the same space.
    """

    blocks: Floats  # (2, num_layers, num_kv_heads, num_tokens, head_dim)
    queries: Floats  # (num_layers, num_kv_heads, num_queries, head_dim), rotary positions applied


@dataclass(frozen=True, kw_only=True, slots=True)
class WidthError:
    """What one width does: the relative mean square error of the attention's output."""

    bits: int
    mean_error: float  # over the layers
    worst_error: float  # of the worst layer


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryReport:
    """The namespace with as many bits as it needs, and what was measured on the way, fewest bits first."""

    namespace: KVNamespace
    widths: tuple[WidthError, ...]


class Canary:
    """Chooses the bits of namespaces; what it found is kept by the digest of the namespace that was asked for."""

    def __init__(self, *, policy: CodecPolicy, max_error: float = MAX_ERROR) -> None:
        if not 0 < max_error < math.inf:
            raise BadRequestError(f'canary: expected a positive finite max_error, got {max_error}')
        self._policy = policy
        self._max_error = max_error
        self._reports: dict[bytes, CanaryReport] = {}

    def measure(self, namespace: KVNamespace, sample: CanarySample) -> CanaryReport:
        """Try the namespace's bits, then more, until the worst layer's error is within the bound; 16 always is.

        Raises BadRequestError for a sample of which the policy would keep everything exact, and StoreError for one with
        NaN or infinities.
        """
        _require_sample(namespace, sample)
        self._require_written_blocks(namespace, sample)
        widths: list[WidthError] = []
        for bits in [width for width in WIDTHS if width >= namespace.bits]:
            candidate = replace(namespace, bits=bits)
            widths.append(self._error(candidate, sample))
            if widths[-1].worst_error <= self._max_error:
                break
        report = CanaryReport(namespace=candidate, widths=tuple(widths))
        self._reports[namespace.digest] = report
        return report

    def report(self, namespace: KVNamespace) -> CanaryReport:
        """What was found. Raises BadRequestError for a namespace with fewer bits that was never measured."""
        if namespace.bits == WIDTHS[-1]:
            return CanaryReport(namespace=namespace, widths=())
        if namespace.digest not in self._reports:
            raise BadRequestError(
                f'canary: expected a measurement of {namespace.model} with {namespace.bits} bits, got none; '
                'measure a sample of this model first, or ask for 16 bits'
            )
        return self._reports[namespace.digest]

    def _require_written_blocks(self, namespace: KVNamespace, sample: CanarySample) -> None:
        num_blocks = sample.blocks.shape[3] // namespace.block_tokens
        codecs = [self._policy.choose(namespace.layout, index, num_blocks) for index in range(num_blocks)]
        if namespace.bits < WIDTHS[-1] and all(codec.bits == WIDTHS[-1] for codec in codecs):
            raise BadRequestError(
                f'canary: expected a text longer than its sinks and recent window, got {sample.blocks.shape[3]} tokens'
            )

    def _error(self, namespace: KVNamespace, sample: CanarySample) -> WidthError:
        degraded = degrade(namespace, self._policy, sample.blocks)
        errors = [
            attention_error(sample.queries[layer], sample.blocks[:, layer], degraded[:, layer])
            for layer in range(namespace.num_layers)
        ]
        return WidthError(bits=namespace.bits, mean_error=math.fsum(errors) / len(errors), worst_error=max(errors))


def degrade(namespace: KVNamespace, policy: CodecPolicy, blocks: Floats) -> Floats:
    """Full blocks of a text as they come back after every one was written as the policy has it."""
    layout, size = namespace.layout, namespace.block_tokens
    num_blocks = blocks.shape[3] // size
    found = blocks.copy()
    for index in range(num_blocks):
        span = slice(index * size, (index + 1) * size)
        raw = np.ascontiguousarray(blocks[:, :, :, span], namespace.dtype).reshape(-1).view(np.uint8)
        out = np.empty_like(raw)
        codec = policy.choose(layout, index, num_blocks)
        codec.decode(codec.encode(raw, layout), layout, out)
        found[:, :, :, span] = out.view(namespace.dtype).reshape(layout.shape)
    return found


def attention_error(queries: Floats, exact: Floats, found: Floats) -> float:
    """Relative mean square error of one layer's attention output.

    `queries` is (num_kv_heads, num_queries, head_dim), `exact` and `found` (2, num_kv_heads, num_tokens, head_dim).
    """
    expected = _attention(queries, *exact)
    error = np.square(_attention(queries, *found) - expected).sum(dtype=np.float64)
    return float(error / max(np.square(expected).sum(dtype=np.float64), np.finfo(np.float32).tiny))


def _attention(queries: Floats, keys: Floats, values: Floats) -> Floats:
    scores = queries @ np.swapaxes(keys, 1, 2) / np.float32(math.sqrt(keys.shape[2]))
    weights = np.exp(scores - scores.max(2, keepdims=True))
    output: Floats = weights @ values / weights.sum(2, keepdims=True)
    return output


def _require_sample(namespace: KVNamespace, sample: CanarySample) -> None:
    shape = namespace.block_shape
    if (*sample.blocks.shape[:3], sample.blocks.shape[4]) != (*shape[:3], shape[4]):
        raise BadRequestError(f'canary: expected blocks like {shape} along tokens, got {sample.blocks.shape}')
    if sample.queries.shape[:2] != shape[1:3] or sample.queries.shape[3] != shape[4]:
        raise BadRequestError(f'canary: expected queries for {shape}, got {sample.queries.shape}')
