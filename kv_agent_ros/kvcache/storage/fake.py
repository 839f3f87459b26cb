"""A store in a dictionary whose device fails, hangs or decays when a test says so."""

from collections.abc import Iterator, Sequence
import threading

import numpy as np

from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, StoreUsage, checksum, num_leading


class FakeStore:
    """A BlockStore. `works` cleared: every operation hangs until it is set. `is_failing`: every operation fails."""

    def __init__(self, capacity_bytes: int) -> None:
        self.works = threading.Event()
        self.works.set()
        self.is_failing = False
        self.blocks: dict[bytes, tuple[BlockRecord, ByteArray]] = {}  # longest unused first
        self._capacity_bytes = capacity_bytes
        self._num_errors = self._num_corrupt = 0

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        if not self._is_reached() or record.length_bytes > self._capacity_bytes:
            return PutResult.FAILED
        if record.key in self.blocks:
            return PutResult.STORED
        if len(value) != record.length_bytes or checksum(value) != record.checksum:
            self._num_corrupt += 1
            return PutResult.CORRUPT
        if self.usage().used_bytes + record.length_bytes > self._capacity_bytes:
            return PutResult.FULL
        self.blocks[record.key] = record, value.copy()
        return PutResult.STORED

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        if not self._is_reached() or key not in self.blocks:
            return None
        record, value = self.blocks.pop(key)
        if checksum(value) != record.checksum:
            self._num_corrupt += 1
            return None
        self.blocks[key] = record, value
        if record.length_bytes > len(out):
            return None
        np.copyto(out[: record.length_bytes], value)
        return record

    def delete(self, key: bytes) -> None:
        if self._is_reached():
            self.blocks.pop(key, None)

    def size_bytes(self, key: bytes) -> int:
        return self.blocks[key][0].length_bytes if key in self.blocks else 0

    def find(self, keys: Sequence[bytes]) -> int:
        return num_leading(keys, lambda key: key in self.blocks) if self._is_reached() else 0

    def records(self) -> Iterator[BlockRecord]:
        if self._is_reached():
            yield from [record for record, _ in self.blocks.values()]

    def usage(self) -> StoreUsage:
        return StoreUsage(
            capacity_bytes=self._capacity_bytes,
            used_bytes=sum(record.length_bytes for record, _ in list(self.blocks.values())),
            num_blocks=len(self.blocks),
            num_errors=self._num_errors,
            num_corrupt=self._num_corrupt,
        )

    def close(self) -> None:
        """Nothing is held."""

    def _is_reached(self) -> bool:
        self.works.wait()
        self._num_errors += self.is_failing
        return not self.is_failing
