"""The DRAM tier: blocks in one shared-memory segment of fixed size, written in place by whoever holds a slot.

`SharedArena` hands out pieces of the segment, `HostStore` names them by block key. Neither is thread-safe: the
`KVCacheManager` that owns them guards them. `SegmentMap` is how other processes reach the bytes.
"""

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.block import BlockSlot
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, StoreUsage, copy_checked, num_leading
from kv_agent_ros.kvcache.storage.segment import Segment, SegmentMap

__all__ = ['HostStore', 'SegmentMap', 'SharedArena']

_ALIGNMENT_BYTES = 64  # a cache line; also makes every element type aligned


class SharedArena:
    """First-fit allocator over one segment; equal sizes never fragment it, neighbours join when freed."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._allocated: dict[int, int] = {}  # offset -> length, both aligned
        self._free: list[tuple[int, int]] = [(0, self.capacity_bytes)]  # sorted (offset, length), never adjacent
        self.used_bytes = 0

    @classmethod
    def create(cls, capacity_bytes: int, directories: Sequence[Path] = ()) -> 'SharedArena':
        """An arena over a segment of its own; see Segment.create()."""
        return cls(Segment.create(aligned_bytes(capacity_bytes), directories))

    @property
    def name(self) -> str:
        return self._segment.name

    @property
    def capacity_bytes(self) -> int:
        return len(self._segment.memory)

    def allocate(self, length_bytes: int) -> int | None:
        """Offset of a free piece, None when there is no room."""
        if length_bytes <= 0:
            raise StoreError(f'allocate: expected length_bytes > 0, got {length_bytes}')
        length = aligned_bytes(length_bytes)
        for index, (offset, available) in enumerate(self._free):
            if available >= length:
                rest = [(offset + length, available - length)] if available > length else []
                self._free[index : index + 1] = rest
                self._allocated[offset] = length
                self.used_bytes += length
                return offset
        return None

    def free(self, offset: int) -> None:
        """Give a piece back. Raises StoreError when it is not allocated."""
        if offset not in self._allocated:
            raise StoreError(f'free: expected an allocated offset, got {offset}')
        start, length = offset, self._allocated.pop(offset)
        self.used_bytes -= length
        index = bisect.bisect(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + length:
            length += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == offset:
            index -= 1
            start, before = self._free.pop(index)
            length += before
        self._free.insert(index, (start, length))

    def size_bytes(self, offset: int) -> int:
        """What the piece at `offset` occupies."""
        return self._allocated[offset]

    def view(self, offset: int, length_bytes: int) -> ByteArray:
        """The bytes, writable."""
        return self._segment.memory[offset : offset + length_bytes]

    def close(self) -> None:
        """Unlink the segment; idempotent."""
        self._segment.close()

    def check_integrity(self) -> None:
        """Raise StoreError when pieces overlap, are lost, or the books are wrong."""
        position = 0
        for offset, length in sorted([*self._free, *self._allocated.items()]):
            if offset != position:
                raise StoreError(f'arena: expected a piece at {position}, got {offset}; this is a bug')
            position += length
        free_bytes = sum(length for _, length in self._free)
        if position != self.capacity_bytes or self.used_bytes + free_bytes != self.capacity_bytes:
            raise StoreError(
                f'arena: expected used + free = {self.capacity_bytes}, got {self.used_bytes} + {free_bytes}; a bug'
            )

    def check_allocated(self, offsets: Sequence[int]) -> None:
        """Raise StoreError when anything else is allocated, or one of these is not."""
        if sorted(offsets) != sorted(self._allocated):
            raise StoreError(f'arena: expected pieces {sorted(offsets)}, got {sorted(self._allocated)}; a leak, a bug')


class HostStore:
    """A BlockStore in shared memory, plus slots that are written first and published later."""

    def __init__(self, arena: SharedArena) -> None:
        self._arena = arena
        self._records: dict[bytes, BlockRecord] = {}
        self._slots: dict[bytes, BlockSlot] = {}
        self._num_corrupt = 0

    def reserve(self, key: bytes, length_bytes: int) -> BlockSlot | None:
        """A slot to be written, then given to publish() or cancel(); None when there is no room."""
        offset = self._arena.allocate(length_bytes)
        if offset is None:
            return None
        return BlockSlot(
            block_key=key, segment=self._arena.name, offset_bytes=offset, length_bytes=length_bytes, checksum=b''
        )

    def publish(self, slot: BlockSlot, record: BlockRecord) -> None:
        """The slot is written: serve it under its key. The key must not be there yet."""
        if record.key in self._slots:
            raise StoreError(f'publish: block {record.key.hex()[:12]} is there already; this is a bug')
        self._records[record.key] = record
        self._slots[record.key] = BlockSlot(
            block_key=record.key,
            segment=slot.segment,
            offset_bytes=slot.offset_bytes,
            length_bytes=slot.length_bytes,
            checksum=record.checksum,
            bits=record.bits,
        )

    def cancel(self, slot: BlockSlot) -> None:
        """Give a reserved slot back."""
        self._arena.free(slot.offset_bytes)

    def slot(self, key: bytes) -> BlockSlot:
        """Where a published block is."""
        return self._slots[key]

    def record(self, key: bytes) -> BlockRecord:
        """What is known about a published block."""
        return self._records[key]

    def view(self, slot: BlockSlot) -> ByteArray:
        """The bytes of a slot, writable."""
        return self._arena.view(slot.offset_bytes, slot.length_bytes)

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        if record.key in self._slots:
            return PutResult.STORED
        if len(value) != record.length_bytes:
            return self._refuse()
        if record.length_bytes > self._arena.capacity_bytes:
            return PutResult.FAILED
        slot = self.reserve(record.key, record.length_bytes)
        if slot is None:
            return PutResult.FULL
        if copy_checked(value, self.view(slot)) != record.checksum:
            self.cancel(slot)
            return self._refuse()
        self.publish(slot, record)
        return PutResult.STORED

    def _refuse(self) -> PutResult:
        self._num_corrupt += 1
        return PutResult.CORRUPT

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        if key not in self._slots or self._slots[key].length_bytes > len(out):
            return None
        block = out[: self._slots[key].length_bytes]
        if copy_checked(self.view(self._slots[key]), block) != self._records[key].checksum:
            self._num_corrupt += 1
            self.delete(key)
            return None
        return self._records[key]

    def delete(self, key: bytes) -> None:
        if key in self._slots:
            self._arena.free(self._slots.pop(key).offset_bytes)
            del self._records[key]

    def size_bytes(self, key: bytes) -> int:
        return self._arena.size_bytes(self._slots[key].offset_bytes) if key in self._slots else 0

    def find(self, keys: Sequence[bytes]) -> int:
        return num_leading(keys, lambda key: self.size_bytes(key) > 0)

    def records(self) -> Iterator[BlockRecord]:
        yield from self._records.values()

    def usage(self) -> StoreUsage:
        return StoreUsage(
            capacity_bytes=self._arena.capacity_bytes,
            used_bytes=self._arena.used_bytes,
            num_blocks=len(self._slots),
            num_corrupt=self._num_corrupt,
        )

    def close(self) -> None:
        self._arena.close()

    def check_integrity(self, reserved: Sequence[int] = ()) -> None:
        """Raise StoreError when the arena holds anything but published blocks and the `reserved` offsets."""
        self._arena.check_integrity()
        self._arena.check_allocated([*reserved, *(slot.offset_bytes for slot in self._slots.values())])
        for key, slot in self._slots.items():
            if self.size_bytes(key) < slot.length_bytes or self._records[key].length_bytes != slot.length_bytes:
                raise StoreError(f'host store: block {key.hex()[:12]} has a slot of another size; this is a bug')


def aligned_bytes(length_bytes: int) -> int:
    """What a piece of this length occupies."""
    return -(-length_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
