"""The values of the KV cache: whose blocks (namespace), which block (key), where its bytes are (slot), who may
touch them (lease).

A block holds the keys and values of `block_tokens` consecutive tokens for all layers, as one contiguous array
(2, num_layers, num_kv_heads, block_tokens, head_dim). Its key is a SHA-256 chain over the namespace and every token
before it, so that equal keys mean equal prefixes under equal models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
import hashlib
import math
import struct

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]  # (num_tokens,)


class Tier(Enum):
    """Where a block's bytes are."""

    HBM = 'hbm'
    """Device memory of an engine."""
    DRAM = 'dram'
    """Named shared memory of this machine."""
    SSD = 'ssd'
    """Files of this machine."""
    REMOTE = 'remote'
    """A store shared between machines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockLayout:
    """How the bytes of one block are to be read, and how coarsely a lower tier may keep them."""

    shape: tuple[int, int, int, int, int]  # (2, num_layers, num_kv_heads, block_tokens, head_dim)
    dtype: str  # numpy name
    bits: int = 16  # an element keeps at least so many in the tiers below memory; 16: all it has

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class KVNamespace:
    """Everything that must be equal for two KV blocks of equal tokens to be interchangeable."""

    model: str
    revision: str
    dtype: str  # numpy name of the stored elements: float32, float16
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    adapter: str = ''  # LoRA name@revision
    bits: int = 16  # an element keeps at least so many in the tiers below memory; 16: all it has
    variant: str = ''  # a sparse policy with its budget; '' is full KV, the only one that engines' prefixes match
    tenant: str = ''  # set by the server's configuration, never by a caller

    @property
    def digest(self) -> bytes:
        """32 bytes; every field is framed by its name and length, so no two namespaces collide by concatenation."""
        chain = hashlib.sha256(b'kv_agent_ros/namespace/1')
        for item in fields(self):
            value = str(getattr(self, item.name)).encode()
            name = item.name.encode()
            chain.update(struct.pack('<II', len(name), len(value)) + name + value)
        return chain.digest()

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """(2, num_layers, num_kv_heads, block_tokens, head_dim); index 0 of the first axis is K, 1 is V."""
        return (2, self.num_layers, self.num_kv_heads, self.block_tokens, self.head_dim)

    @property
    def layout(self) -> BlockLayout:
        """How the bytes of one block are to be read."""
        return BlockLayout(shape=self.block_shape, dtype=self.dtype, bits=self.bits)

    @property
    def block_bytes(self) -> int:
        """Size of one block in bytes."""
        return math.prod(self.block_shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionKey:
    """Whose turn it is. One robot can hold several sessions (one per agent); both parts are part of the key."""

    robot_id: str
    session_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSlot:
    """Where one block's bytes lie: `length_bytes` at `offset_bytes` of the shared-memory segment named `segment`."""

    block_key: bytes  # 32 bytes
    segment: str
    offset_bytes: int
    length_bytes: int
    checksum: bytes  # xxh3-128 of the bytes, 16 bytes; empty for a slot that is still to be written
    bits: int = 16  # fewest bits an element had on its way here; 16: as the engine wrote it
    tier: Tier = Tier.DRAM  # where the bytes were when the lease was taken


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixLease:
    """The right to read the longest cached prefix until released or expired. `slots` in token order."""

    lease_id: str
    matched_tokens: int  # a multiple of block_tokens
    slots: tuple[BlockSlot, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteLease:
    """The right to fill slots for blocks that are not cached yet. `first_token` is the token index of slot 0."""

    lease_id: str
    first_token: int
    slots: tuple[BlockSlot, ...]


class EventKind(Enum):
    """What happened to a block."""

    STORED = 'stored'
    REMOVED = 'removed'
    MOVED = 'moved'
    CLEARED = 'cleared'


@dataclass(frozen=True, kw_only=True, slots=True)
class KVEvent:
    """One change of the cache, in order of `sequence`."""

    sequence: int
    kind: EventKind
    block_keys: tuple[bytes, ...] = ()
    tier: Tier = Tier.DRAM
    session: SessionKey = SessionKey(robot_id='', session_id='')
    parent_key: bytes = b''  # of the block before the first of `block_keys`; empty at the start of a prefix
    tokens: bytes = b''  # of these blocks in order, little-endian int32; empty for REMOVED and CLEARED


@dataclass(frozen=True, kw_only=True, slots=True)
class TierUsage:
    """One tier's books; used + free = capacity, evictable ⊆ used."""

    tier: Tier
    capacity_bytes: int
    used_bytes: int
    evictable_bytes: int
    num_blocks: int
    num_hits: int
    num_evictions: int
    num_errors: int
    read_bytes: int = 0  # as stored
    written_bytes: int = 0
    is_degraded: bool = False  # failing now: everything in it is a miss


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionUsage:
    """What one session holds and has gained."""

    session: SessionKey
    num_blocks: int
    is_pinned: bool
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheStats:
    """The manager's books at one instant."""

    tiers: tuple[TierUsage, ...]
    sessions: tuple[SessionUsage, ...]
    num_blocks: int
    num_leases: int
    num_expired_leases: int
    prompt_tokens: int  # of all acquire() calls
    cached_tokens: int  # of those, served
    num_checksum_failures: int
    num_prefetched_blocks: int = 0
    saved_compute_s: float = 0.0  # prefill time that the served tokens would have cost; 0 while it is unknown
    load_s: float = 0.0  # time spent on bringing blocks to memory


def block_key(parent: bytes, tokens: bytes) -> bytes:
    """Key of the block whose tokens are `tokens` (little-endian int32) after `parent`, a key or a namespace digest."""
    return hashlib.sha256(b'kv_agent_ros/block/1' + parent + tokens).digest()


def block_keys(namespace: KVNamespace, tokens: TokenArray | Sequence[int]) -> list[bytes]:
    """Keys of the full blocks of a token sequence, first to last; the partial tail has none."""
    array = np.ascontiguousarray(tokens, dtype='<i4')
    size = namespace.block_tokens
    parent = namespace.digest
    keys = []
    for start in range(0, len(array) - size + 1, size):
        parent = block_key(parent, array[start : start + size].tobytes())
        keys.append(parent)
    return keys
