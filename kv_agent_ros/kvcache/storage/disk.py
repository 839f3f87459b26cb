"""The SSD tier: one file per block in a directory of one process, found again after a crash by its header.

The capacity counts whole file-system blocks of every file, half-written and quarantined ones too, and is claimed before
anything is written. The owner's books are made from the directory when it is opened, never read from a file.
"""

from collections.abc import Iterator, Sequence
import contextlib
import fcntl
import itertools
import logging
import os
from pathlib import Path
import threading
import time

from kv_agent_ros.errors import ConfigError, StoreError
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, StoreUsage, checksum, num_leading
from kv_agent_ros.kvcache.storage.block_file import NO_ROOM, file_bytes, opened, read_block, read_record, write_block

_log = logging.getLogger(__name__)

_MARKER = 'STORE'  # holds the format, and the lock of the owner
_MAX_UNWRITTEN_USES = 256
FORMAT = 3  # of the files
_FORMAT = b'kv_agent_ros/blocks/%d\n' % FORMAT


class DiskStore:
    """A BlockStore in a directory that one process owns at a time. Thread-safe; the lock is never held in I/O."""

    def __init__(self, directory: Path, capacity_bytes: int, marker: int, page_bytes: int) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._marker = marker
        self._page_bytes = page_bytes
        self._lock = threading.Lock()
        self._sizes: dict[bytes, int] = {}  # key -> physical bytes
        self._condemned: dict[str, int] = {}  # quarantined, or could not be deleted: not served, still on the disk
        self._uses_ns: dict[bytes, int] = {}  # that are not on the disk yet: whoever reads does not wait for a write
        self._used_bytes = 0
        self._numbers = itertools.count()
        self._num_errors = self._num_corrupt = 0
        self._is_failing = False

    @classmethod
    def open(cls, directory: Path, capacity_bytes: int) -> 'DiskStore':
        """Open or create a store and count what is there.

        Raises ConfigError when the directory belongs to another process or holds something else, StoreError when the
        device fails.
        """
        if capacity_bytes <= 0:
            raise ConfigError(f'capacity_bytes: expected > 0, got {capacity_bytes}')
        try:
            directory.mkdir(parents=True, exist_ok=True)
            store = cls(directory, capacity_bytes, _claim_directory(directory), os.statvfs(directory).f_frsize)
            store._scan()
        except OSError as error:
            raise StoreError(f'disk store {directory}: cannot open ({error})') from error
        return store

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        if self.size_bytes(record.key):
            return PutResult.STORED
        if len(value) != record.length_bytes or checksum(value) != record.checksum:
            with self._lock:
                self._num_corrupt += 1
            return PutResult.CORRUPT
        size = self._physical(file_bytes(record))
        while (claim := self._claim_room(size)) is PutResult.FULL and self._reclaim():
            pass
        if len(self._uses_ns) >= _MAX_UNWRITTEN_USES:
            self._write_uses()
        return self._write(record, value, size) if claim is PutResult.STORED else claim

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        if not self.size_bytes(key):
            return None
        path = self._path(key)
        try:
            with opened(path) as descriptor:
                record = read_block(descriptor, key, out)
        except OSError as error:
            self._note_failure('read', path, error)
            if isinstance(error, FileNotFoundError):
                self.delete(key)
            return None
        if record is None:
            self._quarantine(key)
            return None
        with self._lock:
            self._uses_ns[key] = time.time_ns()  # the file system's own clock ticks too coarsely to order blocks
        return record if record.length_bytes <= len(out) else None

    def delete(self, key: bytes) -> None:
        if not self.size_bytes(key):
            return
        path = self._path(key)
        is_gone = self._unlink(path)  # first, so that a put of the same key meanwhile has no file to lose
        with self._lock:
            size = self._sizes.pop(key, 0)
            if is_gone:
                self._used_bytes -= size
            elif size:
                self._condemned[path] = size

    def size_bytes(self, key: bytes) -> int:
        with self._lock:
            return self._sizes.get(key, 0)

    def find(self, keys: Sequence[bytes]) -> int:
        return num_leading(keys, lambda key: self.size_bytes(key) > 0)

    def records(self) -> Iterator[BlockRecord]:
        for key in self._keys_by_age():
            path = self._path(key)
            try:
                with opened(path) as descriptor:
                    record = read_record(descriptor, key)
            except OSError as error:
                self._note_failure('read', path, error)
                continue
            if record is None:
                self._quarantine(key)
            else:
                yield record

    def usage(self) -> StoreUsage:
        with self._lock:
            return StoreUsage(
                capacity_bytes=self._capacity_bytes,
                used_bytes=self._used_bytes,
                num_blocks=len(self._sizes),
                num_errors=self._num_errors,
                num_corrupt=self._num_corrupt,
            )

    def close(self) -> None:
        """Let another process have the directory; the blocks stay."""
        if self._marker >= 0:
            self._write_uses()
            os.close(self._marker)
            self._marker = -1

    def _path(self, key: bytes) -> str:
        return f'{self._directory}/{key.hex()}.kv'

    def _physical(self, num_bytes: int) -> int:
        return -(-num_bytes // self._page_bytes) * self._page_bytes

    def _scan(self) -> None:
        """Make the books from the directory; drop what a killed writer left half done."""
        with os.scandir(self._directory) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.rpartition('.')
                if suffix == 'tmp':
                    os.unlink(entry.path)
                elif suffix == 'bad':
                    self._condemned[entry.path] = self._physical(entry.stat().st_size)
                elif suffix == 'kv' and len(stem) == 64:
                    self._sizes[bytes.fromhex(stem)] = self._physical(entry.stat().st_size)
        self._used_bytes = sum(self._sizes.values()) + sum(self._condemned.values())

    def _write_uses(self) -> None:
        """Tell the files when they were read last, for the next process; a process that is killed forgets some."""
        with self._lock:
            uses_ns, self._uses_ns = self._uses_ns, {}
        for key, used_ns in uses_ns.items():
            with contextlib.suppress(OSError):
                os.utime(self._path(key), ns=(used_ns, used_ns))

    def _keys_by_age(self) -> list[bytes]:
        self._write_uses()
        ages = []
        with self._lock:
            keys = list(self._sizes)
        for key in keys:
            with contextlib.suppress(OSError):
                ages.append((os.stat(self._path(key)).st_mtime_ns, key))
        return [key for _, key in sorted(ages)]

    def _claim_room(self, size: int) -> PutResult:
        if size > self._capacity_bytes:
            return PutResult.FAILED
        with self._lock:
            if self._used_bytes + size > self._capacity_bytes:
                return PutResult.FULL
            self._used_bytes += size
        return PutResult.STORED

    def _write(self, record: BlockRecord, value: ByteArray, size: int) -> PutResult:
        path = self._path(record.key)
        temporary = f'{path[:-3]}.{next(self._numbers)}.tmp'
        try:
            write_block(temporary, record, value)
            os.rename(temporary, path)
        except OSError as error:
            self._note_failure('write', path, error)
            is_gone = self._unlink(temporary)
            with self._lock:
                if is_gone:
                    self._used_bytes -= size
                else:
                    self._condemned[temporary] = size
            return PutResult.FULL if error.errno in NO_ROOM else PutResult.FAILED
        with self._lock:
            self._used_bytes -= self._condemned.pop(path, 0)  # replaced just now
            if record.key in self._sizes:  # so was the file of another writer
                self._used_bytes -= size
            self._sizes[record.key] = size
            self._is_failing = False
        return PutResult.STORED

    def _reclaim(self) -> bool:
        """Delete what is condemned; whether anything went."""
        with self._lock:
            condemned, self._condemned = self._condemned, {}
        gone = {path for path in condemned if self._unlink(path)}
        with self._lock:
            self._used_bytes -= sum(condemned[path] for path in gone)
            self._condemned |= {path: size for path, size in condemned.items() if path not in gone}
        return bool(gone)

    def _quarantine(self, key: bytes) -> None:
        """Keep a corrupt file as evidence, under the capacity, until its room is needed."""
        path = self._path(key)
        evidence = f'{path[:-3]}.bad'
        try:
            os.rename(path, evidence)
        except FileNotFoundError:  # another thread has found it too
            return
        except OSError as error:
            self._note_failure('quarantine', path, error)
            evidence = path
        _log.warning('disk store: %s is torn or corrupt; set aside, treated as a miss', path)
        with self._lock:
            size = self._sizes.pop(key, 0)
            self._num_corrupt += 1
            self._used_bytes -= self._condemned.pop(evidence, 0)  # older evidence, replaced just now
            if size:
                self._condemned[evidence] = size
        if not size:  # deleted meanwhile, and its room with it
            self._unlink(evidence)

    def _unlink(self, path: str) -> bool:
        """Whether the file is gone."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._note_failure('delete', path, error)
            return False
        return True

    def _note_failure(self, act: str, path: str, error: OSError) -> None:
        with self._lock:
            self._num_errors += error.errno not in NO_ROOM  # a full disk is no broken one
            was_failing, self._is_failing = self._is_failing, True
        if not was_failing:  # one warning per outage, the count is in usage()
            _log.warning('disk store: cannot %s %s (%s); going on without', act, path, error)


def _claim_directory(directory: Path) -> int:
    """Lock the directory for this process; the descriptor of its marker."""
    if any(directory.iterdir()) and not (directory / _MARKER).exists():
        raise ConfigError(f'disk store {directory}: expected an empty directory or one of ours, got other files')
    marker = os.open(directory / _MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(marker)
        raise ConfigError(f'disk store {directory}: in use by another process; give each its own directory') from error
    found = os.read(marker, 64)
    if found not in (b'', _FORMAT):
        os.close(marker)
        raise ConfigError(
            f'disk store {directory}: expected format {_FORMAT!r}, got {found!r} of another version; '
            'delete the directory, it is a cache and fills again, or name an empty one'
        )
    os.pwrite(marker, _FORMAT, 0)
    return marker
