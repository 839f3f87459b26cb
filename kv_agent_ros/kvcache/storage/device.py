"""The HBM tier: blocks as rows of one tensor on a device; 'cpu' stands in where there is none.

A block is served only after its copy has ended on the device, and rows are read on the stream of the caller.
"""

from collections.abc import Iterator, Sequence
import threading

import numpy as np
import torch

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, StoreUsage, checksum, num_leading


class DeviceStore:
    """A BlockStore of equal rows. Thread-safe; a block shorter than a row occupies all of it."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows  # (num_rows, row_bytes) uint8
        self._lock = threading.Lock()
        self._free = list(range(len(rows)))
        self._placed: dict[bytes, tuple[int, BlockRecord]] = {}  # longest unused first
        self._num_errors = self._num_corrupt = 0

    @classmethod
    def create(cls, capacity_bytes: int, row_bytes: int, device: str) -> 'DeviceStore':
        """As many rows of `row_bytes` as fit, on a torch device ('cpu', 'cuda:0'). Raises ConfigError without room."""
        num_rows = capacity_bytes // row_bytes if row_bytes > 0 else 0
        if num_rows < 1:
            raise ConfigError(
                f'device store: expected room for one block of {row_bytes} bytes, got capacity_bytes={capacity_bytes}'
            )
        try:
            return cls(torch.empty((num_rows, row_bytes), dtype=torch.uint8, device=device))
        except (RuntimeError, AssertionError) as error:  # no such device, or not enough memory on it
            raise ConfigError(
                f'device store: no {num_rows} rows of {row_bytes} bytes on {device!r} ({error})'
            ) from error

    def row(self, key: bytes) -> torch.Tensor:
        """The bytes of a stored block on the device, (length_bytes,) uint8; valid until the block is deleted."""
        index, record = self._placed[key]
        return self._rows[index, : record.length_bytes]

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        with self._lock:
            if record.key in self._placed:
                return PutResult.STORED
            if len(value) != record.length_bytes or checksum(value) != record.checksum:
                self._num_corrupt += 1
                return PutResult.CORRUPT
            if record.length_bytes > self._rows.shape[1]:
                return PutResult.FAILED
            if not self._free:
                return PutResult.FULL
            try:
                self._copy(self._rows[self._free[-1], : record.length_bytes], _tensor(value))
            except RuntimeError:  # the device's
                self._num_errors += 1
                return PutResult.FAILED
            self._placed[record.key] = self._free.pop(), record
        return PutResult.STORED

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        with self._lock:
            if key not in self._placed:
                return None
            index, record = self._placed[key]
            if record.length_bytes > len(out):
                return None
            value = out[: record.length_bytes]
            try:
                self._copy(torch.from_numpy(value), self._rows[index, : record.length_bytes])
            except RuntimeError:
                self._num_errors += 1
                return None
            if checksum(value) != record.checksum:
                self._num_corrupt += 1
                self._free_row(key)
                return None
            self._placed[key] = self._placed.pop(key)
            return record

    def delete(self, key: bytes) -> None:
        with self._lock:
            if key in self._placed:
                self._free_row(key)

    def size_bytes(self, key: bytes) -> int:
        return self._rows.shape[1] if key in self._placed else 0

    def find(self, keys: Sequence[bytes]) -> int:
        return num_leading(keys, lambda key: self.size_bytes(key) > 0)

    def records(self) -> Iterator[BlockRecord]:
        with self._lock:
            found = [record for _, record in self._placed.values()]
        yield from found

    def usage(self) -> StoreUsage:
        num_rows, row_bytes = self._rows.shape
        return StoreUsage(
            capacity_bytes=num_rows * row_bytes,
            used_bytes=(num_rows - len(self._free)) * row_bytes,
            num_blocks=len(self._placed),
            num_errors=self._num_errors,
            num_corrupt=self._num_corrupt,
        )

    def close(self) -> None:
        """Give the device's memory back as soon as no row() is held; idempotent."""
        with self._lock:
            self._placed, self._free = {}, []
            self._rows = self._rows[:0].clone()

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy and wait for the end of it: from here on any stream may read the target."""
        target.copy_(source)
        if self._rows.is_cuda:
            torch.cuda.current_stream(self._rows.device).synchronize()

    def _free_row(self, key: bytes) -> None:
        index, _ = self._placed.pop(key)
        self._free.append(index)


def _tensor(value: ByteArray) -> torch.Tensor:
    return torch.from_numpy(value if value.flags.writeable else np.array(value))
