"""The KV of a session of which every head holds only some tokens, and its bytes as blocks of the cache.

Keys stay rotated to the position that their token had; an engine that counts positions anew asks for `keys_from_zero`.
Knows neither why a token was kept nor where the blocks are.
"""

from dataclasses import dataclass
import math

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.kvcache.block import KVNamespace
from kv_agent_ros.kvcache.importance import FloatArray, rotate
from kv_agent_ros.kvcache.storage.base import ByteArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SparseKV:
    """Rows of keys and values; head [l, h] uses its first `counts[l, h]` rows, the others are 0."""

    keys: FloatArray  # (num_layers, num_kv_heads, num_rows, head_dim)
    values: FloatArray  # (num_layers, num_kv_heads, num_rows, head_dim)
    positions: IntArray  # (num_layers, num_kv_heads, num_rows), rising: which token of the session a row is
    counts: IntArray  # (num_layers, num_kv_heads)
    num_tokens: int  # of the session, dropped ones included

    @classmethod
    def full(cls, keys: FloatArray, values: FloatArray) -> 'SparseKV':
        """The KV of a session that holds all its tokens, both (num_layers, num_kv_heads, num_tokens, head_dim)."""
        if keys.ndim != 4 or keys.shape != values.shape or not (np.isfinite(keys).all() and np.isfinite(values).all()):
            raise BadRequestError(
                'KV: expected finite keys and values of one shape (layers, KV heads, tokens, head_dim), '
                f'got {keys.shape} and {values.shape}'
            )
        num_tokens = keys.shape[2]
        positions = np.broadcast_to(np.arange(num_tokens, dtype=np.int32), keys.shape[:3])
        counts = np.full(keys.shape[:2], num_tokens, dtype=np.int32)
        return cls(keys=keys, values=values, positions=positions, counts=counts, num_tokens=num_tokens)

    @property
    def is_full(self) -> bool:
        """Whether no head has dropped a token."""
        return bool((self.counts == self.num_tokens).all())

    @property
    def num_bytes(self) -> int:
        """What the rows in use occupy in memory, without padding, their positions included."""
        head_bytes = self.keys.shape[3] * (self.keys.itemsize + self.values.itemsize)
        return int(self.counts.sum() * (head_bytes + self.positions.itemsize))

    @property
    def in_use(self) -> BoolArray:
        """(num_layers, num_kv_heads, num_rows)"""
        return np.arange(self.keys.shape[2]) < self.counts[..., None]

    def taken(self, rows: BoolArray) -> 'SparseKV':
        """A copy that holds only these of the rows in use, in their order."""
        rows = rows & self.in_use
        counts = rows.sum(axis=2, dtype=np.int32)
        order = np.argsort(~rows, axis=2, kind='stable')[..., : counts.max(initial=0)]
        is_used = np.arange(order.shape[2]) < counts[..., None]
        return SparseKV(
            keys=np.take_along_axis(self.keys, order[..., None], axis=2) * is_used[..., None],
            values=np.take_along_axis(self.values, order[..., None], axis=2) * is_used[..., None],
            positions=np.take_along_axis(self.positions, order, axis=2) * is_used,
            counts=counts,
            num_tokens=self.num_tokens,
        )

    def extended(self, keys: FloatArray, values: FloatArray) -> 'SparseKV':
        """With the next tokens of the session, which all heads hold."""
        later = SparseKV.full(keys, values)
        if later.counts.shape != self.counts.shape or keys.shape[3] != self.keys.shape[3]:
            raise BadRequestError(f'KV: expected the layers and heads of {self.keys.shape}, got {keys.shape}')
        joined = SparseKV(
            keys=np.concatenate((self.keys, keys), axis=2),
            values=np.concatenate((self.values, values), axis=2),
            positions=np.concatenate((self.positions, later.positions + np.int32(self.num_tokens)), axis=2),
            counts=np.full_like(self.counts, self.keys.shape[2] + later.num_tokens),
            num_tokens=self.num_tokens + later.num_tokens,
        )
        return joined.taken(np.concatenate((self.in_use, later.in_use), axis=2))

    def keys_from_zero(self, frequencies: npt.NDArray[np.float64]) -> FloatArray:
        """The keys as if the tokens that a head holds stood at 0, 1, 2, …: positions re-assigned inside the cache.

        Xiao et al. 2024 (StreamingLLM). `frequencies` as in importance.rotate().
        """
        return rotate(self.keys, np.where(self.in_use, np.arange(self.keys.shape[2]) - self.positions, 0), frequencies)


def packed_blocks(num_rows: int, namespace: KVNamespace) -> int:
    """How many blocks `num_rows` rows of all heads together need."""
    row_bytes = 4 + 2 * namespace.head_dim * np.dtype(namespace.dtype).itemsize
    heads = namespace.num_layers * namespace.num_kv_heads
    return math.ceil((8 + 4 * heads + num_rows * row_bytes) / namespace.block_bytes)


def pack(kv: SparseKV, namespace: KVNamespace) -> ByteArray:
    """(num_blocks, block_bytes): length, counts, positions, keys, values, then zeros. No padding between heads."""
    used = kv.in_use
    parts = [np.array([kv.num_tokens], '<i8'), kv.counts.astype('<i4'), kv.positions[used].astype('<i4')]
    parts += [kv.keys[used].astype(namespace.dtype), kv.values[used].astype(namespace.dtype)]
    packed = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
    blocks = np.zeros((packed_blocks(int(kv.counts.sum()), namespace), namespace.block_bytes), dtype=np.uint8)
    blocks.reshape(-1)[: len(packed)] = packed
    return blocks


def unpack(blocks: ByteArray, namespace: KVNamespace) -> SparseKV:
    """What pack() packed; raises StoreError for anything else."""
    flat = blocks.reshape(-1)
    heads = (namespace.num_layers, namespace.num_kv_heads)
    first_row = 8 + 4 * math.prod(heads)
    if len(flat) < first_row:
        raise StoreError(f'sparse KV: expected at least {first_row} bytes, got {len(flat)}')
    num_tokens = int(flat[:8].view('<i8')[0])
    counts = flat[8:first_row].view('<i4').reshape(heads).astype(np.int32)
    if counts.min() < 0 or counts.max() > num_tokens or len(blocks) != packed_blocks(int(counts.sum()), namespace):
        raise StoreError(f'sparse KV: expected counts that fit {len(blocks)} blocks, got {counts.sum()} rows')
    used = np.arange(counts.max()) < counts[..., None]
    num_rows, end = int(counts.sum()), first_row + 4 * int(counts.sum())
    positions = np.zeros(used.shape, dtype=np.int32)
    positions[used] = flat[first_row:end].view('<i4')
    halves = flat[end : end + 2 * num_rows * namespace.head_dim * np.dtype(namespace.dtype).itemsize]
    rows = halves.view(namespace.dtype).reshape(2, num_rows, namespace.head_dim)
    keys, values = np.zeros((2, *used.shape, namespace.head_dim), dtype=np.float32)
    keys[used], values[used] = rows
    return SparseKV(keys=keys, values=values, positions=positions, counts=counts, num_tokens=num_tokens)
