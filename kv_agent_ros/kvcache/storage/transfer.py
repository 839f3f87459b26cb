"""The values that go between a tier and the one above it."""

from collections.abc import Callable
from dataclasses import dataclass

from kv_agent_ros.kvcache.block import EventKind, Tier
from kv_agent_ros.kvcache.path import TokenPath
from kv_agent_ros.kvcache.radix_tree import PathLock
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult

ReadBlock = Callable[[bytes], tuple[BlockRecord, ByteArray]]  # by key; raises StoreError when it is not there


@dataclass(frozen=True, kw_only=True, slots=True)
class TierChange:
    """Blocks that a tier got or lost."""

    kind: EventKind
    tier: Tier
    keys: tuple[bytes, ...]
    path: TokenPath = TokenPath()  # of stored blocks; these are its last ones


@dataclass(kw_only=True, slots=True)
class TransferResult:
    """How far the path is here now, and why no further."""

    num_present: int = 0
    last: PutResult = PutResult.FAILED


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Transfer:
    """A path to be copied down. The giver keeps its bytes in place until `done` is called, once, by any thread."""

    path: TokenPath
    keys: tuple[bytes, ...]
    read: ReadBlock  # as an engine wrote them
    done: Callable[['Transfer', TransferResult], None]
    lock: PathLock  # the giver's


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedBlock:
    """A block that came up."""

    checksum: bytes  # of the block as an engine reads it
    bits: int
    stored_bytes: int
