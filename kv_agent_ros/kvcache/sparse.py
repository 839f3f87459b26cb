"""Sessions longer than their budget: what keeping less of them costs, and the kept KV in the cache.

The kept KV is a copy in a namespace of its own: nothing of the full session is cut, and no lookup of full KV can meet
it. Which tokens are kept is sparse_policy.py's matter.
"""

from dataclasses import dataclass, replace
import hashlib
import math

import numpy as np

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.base import PrefixCache
from kv_agent_ros.kvcache.block import KVNamespace, SessionKey, TokenArray
from kv_agent_ros.kvcache.importance import FloatArray, TokenImportanceEstimator, causal_attention
from kv_agent_ros.kvcache.sparse_kv import BoolArray, SparseKV, pack, packed_blocks, unpack
from kv_agent_ros.kvcache.sparse_policy import SparsePolicy, select
from kv_agent_ros.kvcache.storage.base import checksum
from kv_agent_ros.kvcache.storage.segment import SegmentMap

TINY = 1e-12  # below any mass or square of an output


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """What attention over the kept tokens still is of attention over all; means over layers and query heads."""

    mass: float  # share of the attention that falls on kept tokens, 0 to 1
    output_error: float  # relative mean squared error of the attention's output


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Compression:
    """The result; `kv` is the KV that came in where the bounds of the policy were broken."""

    kv: SparseKV
    retention: Retention


def importance_ahead(kv: SparseKV, queries: FloatArray) -> FloatArray:
    """(num_layers, num_kv_heads, num_rows): what `queries` (num_layers, num_heads, num_queries, head_dim) look at,
    asked after the session; best the last ones of the session, moved by look_ahead().
    """
    num_layers, num_heads, num_queries, _ = queries.shape
    num_kv_heads, num_rows = kv.positions.shape[1:]
    group = num_heads // num_kv_heads
    importance = TokenImportanceEstimator(
        num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_kv_heads, half_life_queries=math.inf
    )
    for layer in range(num_layers):
        attention = np.zeros((num_heads, num_queries, num_rows), dtype=np.float32)
        for head in range(num_kv_heads):
            rows = slice(0, kv.counts[layer, head])
            attention[head * group : (head + 1) * group, :, rows] = _attention_of_head(kv, layer, head, queries)
        importance.observe(layer, attention, num_rows)
    return importance.scores()


def retention(kv: SparseKV, kept: BoolArray, queries: FloatArray) -> Retention:
    """What `queries` (num_layers, num_heads, num_queries, head_dim), asked after the session, lose without the rest."""
    masses, errors = [], []
    for layer, head in np.ndindex(*kv.counts.shape):
        rows = slice(0, kv.counts[layer, head])
        attention, values = _attention_of_head(kv, layer, head, queries), kv.values[layer, head, rows]
        left = attention * kept[layer, head, rows]
        mass = left.sum(axis=2, keepdims=True)
        output = attention @ values
        lost = (left / np.maximum(mass, TINY)) @ values - output
        masses.append(float(mass.mean()))
        errors.append(float(((lost**2).sum(axis=(1, 2)) / np.maximum((output**2).sum(axis=(1, 2)), TINY)).mean()))
    return Retention(mass=float(np.mean(masses)), output_error=float(np.mean(errors)))


def _attention_of_head(kv: SparseKV, layer: int, head: int, queries: FloatArray) -> FloatArray:
    """(group, num_queries, rows in use)"""
    group = queries.shape[1] // kv.keys.shape[1]
    keys = kv.keys[layer, head, None, : kv.counts[layer, head]]
    return causal_attention(queries[layer, head * group : (head + 1) * group], keys, keys.shape[1])


class SparseKVCache:
    """Compresses sessions, and keeps what is left of them in a PrefixCache beside full ones. Stateless.

    `namespace` is the one of the full KV; the kept KV goes to its own, with all bits, for positions must stay exact.
    """

    def __init__(
        self, *, cache: PrefixCache, segments: SegmentMap, namespace: KVNamespace, policy: SparsePolicy
    ) -> None:
        self._cache = cache
        self._segments = segments
        self.policy = policy
        self.namespace = replace(namespace, variant=policy.variant, bits=16)

    def compress(self, kv: SparseKV, importance: FloatArray, queries: FloatArray) -> Compression:
        """A copy of `kv` within the budget, and what `queries` lose by it; see select() and retention()."""
        kept = select(kv, importance, self.policy)
        cost = retention(kv, kept, queries)
        is_good = cost.mass >= self.policy.min_retained_mass and cost.output_error <= self.policy.max_output_error
        return Compression(kv=kv.taken(kept) if is_good else kv, retention=cost)

    def store(self, session: SessionKey, tokens: TokenArray, kv: SparseKV) -> bool:
        """Publish the KV of `tokens`, compressed at their end; whether all of it is visible now.

        Raises BadRequestError for KV that this policy does not make of so many tokens: full KV is an ordinary prefix.
        """
        path = self._path(tokens)
        blocks = pack(kv, self.namespace)
        is_compressed = kv.num_tokens == len(tokens) and len(tokens) in self.policy.points(len(tokens))
        if not is_compressed or len(path) != len(blocks) * self.namespace.block_tokens:
            raise BadRequestError(
                f'sparse KV: expected {len(tokens)} tokens compressed at a multiple of {self.policy.interval_tokens}, '
                f'got {kv.num_tokens} tokens of which heads keep {kv.counts.sum()} rows in all'
            )
        lease = self._cache.reserve(self.namespace, session, path)
        try:
            num_before = lease.first_token // self.namespace.block_tokens
            checksums = []
            for slot, block in zip(lease.slots, blocks[num_before:], strict=False):  # fewer slots under pressure
                view = self._segments.slot(slot)
                view[:] = block
                checksums.append(checksum(view))
            return num_before + self._cache.commit(lease.lease_id, checksums) == len(blocks)
        finally:
            self._cache.release(lease.lease_id)

    def fetch(self, session: SessionKey, tokens: TokenArray) -> SparseKV | None:
        """The kept KV of the longest stored prefix of `tokens`; its `num_tokens` need not be computed again."""
        for length in self.policy.points(len(tokens)):
            found = self._read(session, self._path(tokens[:length]))
            if found is not None:
                return found
        return None

    def _read(self, session: SessionKey, path: TokenArray) -> SparseKV | None:
        # One token more, because acquire() leaves one to compute.
        lease = self._cache.acquire(self.namespace, session, np.append(path, np.int32(0)))
        try:
            if lease.matched_tokens < len(path):
                return None
            blocks = np.empty((len(lease.slots), self.namespace.block_bytes), dtype=np.uint8)
            for index, slot in enumerate(lease.slots):
                blocks[index] = self._segments.slot(slot)
                if checksum(blocks[index]) != slot.checksum:
                    self._cache.discard(lease.lease_id, index)
                    return None
            return unpack(blocks, self.namespace)
        finally:
            self._cache.release(lease.lease_id)

    def _path(self, tokens: TokenArray) -> TokenArray:
        """The path of the blocks: every id depends on all tokens, because every kept row does."""
        heads = self.namespace.num_layers * self.namespace.num_kv_heads
        num_blocks = packed_blocks(heads * self.policy.budget.of(len(tokens)), self.namespace)
        digest = hashlib.shake_256(b'kv_agent_ros/sparse/1' + np.ascontiguousarray(tokens, dtype='<i4').tobytes())
        ids = np.frombuffer(digest.digest(4 * num_blocks * self.namespace.block_tokens), dtype='<i4')
        return ids & np.int32(0x7FFFFFFF)
