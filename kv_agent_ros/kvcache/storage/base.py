"""The seam to places that keep blocks: keys to checked bytes.

A store neither knows prefixes nor chooses victims: `BackingTier` and `KVCacheManager` do that with their trees.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

ByteArray = npt.NDArray[np.uint8]  # (num_bytes,), contiguous

CHUNK_BYTES = 256 << 10  # moved and hashed piece by piece, so that hashing finds it in the processor's cache


def checksum(value: ByteArray) -> bytes:
    """xxh3-128 of the bytes, 16 bytes: finds accidents in memory and on disk, not attacks."""
    return xxhash.xxh3_128_digest(value.data)


def copy_checked(source: ByteArray, out: ByteArray) -> bytes:
    """Copy, and the checksum() of what has arrived."""
    digest = xxhash.xxh3_128()
    for start in range(0, len(source), CHUNK_BYTES):
        chunk = out[start : start + CHUNK_BYTES]
        np.copyto(chunk, source[start : start + CHUNK_BYTES])
        digest.update(chunk.data)
    return digest.digest()


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRecord:
    """What must be known about a block to find its place in a tree again, without its bytes."""

    key: bytes
    parent_key: bytes  # the namespace digest for the first block of a prefix
    root: bytes  # namespace digest
    tokens: bytes  # little-endian int32
    length_bytes: int  # of the stored bytes
    checksum: bytes  # of the stored bytes
    codec: str = 'raw'  # name of the BlockCodec that wrote them
    bits: int = 16  # fewest bits an element had on its way here; 16: as the engine wrote it


class PutResult(Enum):
    """What became of a put."""

    STORED = 'stored'
    """The block is there, or was there before."""
    FULL = 'full'
    """No room; delete something and try again."""
    CORRUPT = 'corrupt'
    """The bytes do not have the checksum of the record; nothing was stored."""
    FAILED = 'failed'
    """The device failed, or the block can never fit; nothing was stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreUsage:
    """A store's books: capacity counts everything it may occupy, whole pages included."""

    capacity_bytes: int
    used_bytes: int
    num_blocks: int
    num_errors: int = 0  # failed reads and writes of the device
    num_corrupt: int = 0  # blocks whose bytes or header did not have their checksum
    read_bytes: int = 0  # this and below are measured by GuardedStore
    written_bytes: int = 0
    read_bytes_per_s: float = 0.0  # of late; 0 while nothing was read
    write_bytes_per_s: float = 0.0
    read_latency_s: float = 0.0  # of one block, of late
    write_latency_s: float = 0.0
    is_degraded: bool = False  # failing or hanging now: everything in it is a miss; do not delete what misses


def num_leading(keys: Sequence[bytes], is_here: Callable[[bytes], bool]) -> int:
    """How many keys come before the first that is not here."""
    return next((index for index, key in enumerate(keys) if not is_here(key)), len(keys))


class BlockStore(Protocol):
    """Keeps blocks by key. Failing devices are misses that `usage()` counts; no method raises for them."""

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        """Keep a copy of the bytes, whole or not at all."""
        ...

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        """Fill the start of `out` with the verified bytes; the block's record, or None for a miss.

        `out` may be longer than the block, and is undefined after a miss; a block longer than `out` is a miss.
        """
        ...

    def delete(self, key: bytes) -> None:
        """Free the block; an unknown key is ignored."""
        ...

    def size_bytes(self, key: bytes) -> int:
        """What the block occupies of the capacity, 0 when it is not there. Answers from memory."""
        ...

    def find(self, keys: Sequence[bytes]) -> int:
        """How many of these blocks are here, up to the first that is not, those that other owners put here included.

        May touch the device.
        """
        ...

    def records(self) -> Iterator[BlockRecord]:
        """All blocks, longest unused first; a listing that is not complete counts as an error in usage()."""
        ...

    def usage(self) -> StoreUsage:
        """The books. Answers from memory."""
        ...

    def close(self) -> None:
        """Free what the process holds; idempotent."""
        ...
