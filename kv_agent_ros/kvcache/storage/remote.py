"""The REMOTE tier: blocks in a directory that many processes and hosts share, as long as its lock works between them.

What others put is found by `get` and `find` at once. A store that is full evicts the longest unused blocks itself,
whoever put them, tails before heads: no single owner knows them all.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
import heapq
import logging
import os
from pathlib import Path
import threading

from kv_agent_ros.errors import ConfigError, StoreError
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, StoreUsage, checksum, num_leading
from kv_agent_ros.kvcache.storage.block_file import NO_ROOM, file_bytes, opened, read_block, read_record, write_block
from kv_agent_ros.kvcache.storage.shared_directory import SharedDirectory

_log = logging.getLogger(__name__)

_EVICTED_SHARE = 20  # one part in so many of the capacity goes at once: to find victims everything is listed
_MAX_TRIES = 4  # to get room that other owners take as fast as it is made
_RECOUNT_S = 600.0


class RemoteStore:
    """A BlockStore with many owners. Thread-safe. Its lock guards memory only and is never held in I/O."""

    def __init__(self, shared: SharedDirectory, capacity_bytes: int) -> None:
        self._shared = shared
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._records: dict[bytes, BlockRecord] = {}  # as far as known, longest unused first
        self._num_errors = self._num_corrupt = 0
        self._is_failing = False

    @classmethod
    def open(cls, directory: Path, capacity_bytes: int) -> 'RemoteStore':
        """Become an owner of a directory, made when it is not there; all owners should give it the same capacity.

        Raises ConfigError when it holds something else, StoreError when the device fails.
        """
        if capacity_bytes <= 0:
            raise ConfigError(f'capacity_bytes: expected > 0, got {capacity_bytes}')
        try:
            shared = SharedDirectory.open(directory, capacity_bytes)
        except OSError as error:
            raise StoreError(f'shared store {directory}: cannot open ({error})') from error
        return cls(shared, capacity_bytes)

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        if len(value) != record.length_bytes or checksum(value) != record.checksum:
            with self._lock:
                self._num_corrupt += 1
            return PutResult.CORRUPT
        size = self._shared.physical(file_bytes(record))
        if size > self._capacity_bytes:
            return PutResult.FAILED
        try:
            if not os.path.exists(self._shared.path(record.key)) and not self._write(record, value, size):
                return PutResult.FULL
        except OSError as error:
            self._note_failure('write', record.key, error)
            return PutResult.FULL if error.errno in NO_ROOM else PutResult.FAILED
        with self._lock:
            self._records[record.key] = record
            self._is_failing = False
        return PutResult.STORED

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        try:
            with opened(self._shared.path(key)) as descriptor:
                record = read_block(descriptor, key, out)
                os.utime(descriptor)  # by the clock of the file server, which all owners share
        except FileNotFoundError:
            self._forget(key)
            return None
        except OSError as error:
            self._note_failure('read', key, error)
            return None
        if record is None:
            self._set_aside(key)
            return None
        with self._lock:
            self._records[key] = record
        return record if record.length_bytes <= len(out) else None

    def delete(self, key: bytes) -> None:
        """Free the block, for all owners."""
        try:
            self._shared.delete(key)
        except OSError as error:
            self._note_failure('delete', key, error)
        else:
            self._forget(key)

    def size_bytes(self, key: bytes) -> int:
        with self._lock:
            record = self._records.get(key)
        return self._shared.physical(file_bytes(record)) if record is not None else 0

    def find(self, keys: Sequence[bytes]) -> int:
        """See BlockStore. One look at the directory for each block that is not known yet."""
        return num_leading(keys, self._is_here)

    def records(self) -> Iterator[BlockRecord]:
        """All blocks of all owners, longest unused first."""
        try:
            self._list()
        except OSError as error:
            self._note_failure('list', b'', error)
        with self._lock:
            found = list(self._records.values())
        yield from found

    def usage(self) -> StoreUsage:
        """The books of all owners together, as this one saw them last; errors are its own."""
        books = self._shared.seen
        with self._lock:
            return StoreUsage(
                capacity_bytes=self._capacity_bytes,
                used_bytes=books.used_bytes,
                num_blocks=books.num_blocks,
                num_errors=self._num_errors,
                num_corrupt=self._num_corrupt,
            )

    def close(self) -> None:
        """Stop being an owner; the blocks stay."""
        try:
            self._shared.close()
        except OSError as error:
            self._note_failure('close', b'', error)

    def _write(self, record: BlockRecord, value: ByteArray, size: int) -> bool:
        """False when there is no room and none can be made."""
        claim = self._shared.claim(size)
        for _ in range(_MAX_TRIES):
            if claim:
                break
            self._make_room(size)
            claim = self._shared.claim(size)
        if not claim:
            return False
        try:
            write_block(claim, record, value)
        except OSError:
            self._shared.give_back(claim)
            raise
        self._shared.publish(claim, record.key)
        return True

    def _make_room(self, size: int) -> None:
        if self._shared.tidy(_RECOUNT_S) >= size:
            return
        self._list()
        with self._lock:
            records = dict(self._records)
        num_children = Counter(record.parent_key for record in records.values())
        ages = {key: age for age, key in enumerate(records)}
        tails = [(ages[key], key) for key in records if not num_children[key]]
        heapq.heapify(tails)
        wanted = size + self._capacity_bytes // _EVICTED_SHARE
        while tails and wanted > 0:
            _, key = heapq.heappop(tails)
            wanted -= self._shared.physical(file_bytes(records[key]))
            self.delete(key)
            parent = records[key].parent_key
            num_children[parent] -= 1
            if parent in records and not num_children[parent]:
                heapq.heappush(tails, (ages[parent], parent))

    def _list(self) -> None:
        """Learn what the directory holds. Only headers of unknown blocks are read."""
        listed = sorted(self._shared.blocks())
        with self._lock:
            known = dict(self._records)
        found = {key: known[key] if key in known else self._read_record(key) for _, key in listed}
        with self._lock:
            later = {key: record for key, record in self._records.items() if key not in known}
            self._records = {key: record for key, record in found.items() if record is not None} | later

    def _is_here(self, key: bytes) -> bool:
        if self.size_bytes(key):
            return True
        record = self._read_record(key)
        if record is not None:
            with self._lock:
                self._records.setdefault(key, record)
        return record is not None

    def _read_record(self, key: bytes) -> BlockRecord | None:
        try:
            with opened(self._shared.path(key)) as descriptor:
                record = read_record(descriptor, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note_failure('read', key, error)
            return None
        if record is None:
            self._set_aside(key)
        return record

    def _set_aside(self, key: bytes) -> None:
        _log.warning('shared store: block %s is torn or corrupt; set aside, treated as a miss', key.hex()[:12])
        with self._lock:
            self._num_corrupt += 1
        try:
            self._shared.set_aside(key)
        except OSError as error:
            self._note_failure('set aside', key, error)
        self._forget(key)

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._records.pop(key, None)

    def _note_failure(self, act: str, key: bytes, error: OSError) -> None:
        with self._lock:
            self._num_errors += error.errno not in NO_ROOM
            was_failing, self._is_failing = self._is_failing, True
        if not was_failing:  # one warning per outage, the count is in usage()
            _log.warning('shared store: cannot %s block %s (%s); going on without', act, key.hex()[:12], error)
