"""The SSD tier: one file per block, found again after a crash by its header.

A file appears whole or not at all (temporary name, then rename). Nothing is synced: after a loss of power a torn file
fails its checksum and is a miss. The capacity counts whole pages of every file and is claimed before writing.
"""

from collections.abc import Iterator
import contextlib
import fcntl
import logging
import os
from pathlib import Path
import struct
import threading
import time
from typing import BinaryIO

import numpy as np

from kv_agent_ros.errors import ConfigError, StoreError
from kv_agent_ros.kvcache.block import block_key
from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, StoreUsage, checksum

_log = logging.getLogger(__name__)

_MARKER = 'STORE'  # holds the format, and the lock of the owner
_FORMAT = b'kv_agent_ros/blocks/1\n'
_MAGIC = b'KVBLOCK1'
_HEAD = struct.Struct('<8s32s32s32s16sQI')  # magic, key, parent key, root, checksum, length, number of token bytes
_DIGEST_BYTES = 16
_MAX_TOKEN_BYTES = 1 << 20
_PAGE_BYTES = 4096


class DiskStore:
    """A BlockStore in one directory that belongs to one process at a time. Thread-safe for one writer."""

    def __init__(self, directory: Path, capacity_bytes: int, marker: int) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._marker = marker
        self._lock = threading.Lock()
        self._sizes: dict[bytes, int] = {}  # key -> physical bytes
        self._quarantined: dict[Path, int] = {}
        self._used_bytes = 0
        self._num_errors = 0
        self._num_corrupt = 0
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
            store = cls(directory, capacity_bytes, _claim_directory(directory))
            store._scan()
        except OSError as error:
            raise StoreError(f'disk store {directory}: cannot open ({error})') from error
        return store

    def put(self, record: BlockRecord, value: ByteArray) -> PutResult:
        if len(value) != record.length_bytes or checksum(value) != record.checksum:
            with self._lock:
                self._num_corrupt += 1
            return PutResult.CORRUPT
        if self.size_bytes(record.key):
            return PutResult.STORED
        header = _pack(record)
        size = _physical(len(header) + len(value))
        claim = self._claim_room(size)
        if claim is not PutResult.STORED:
            return claim
        path = self._path(record.key)
        try:
            _write_whole(path, header, value)
        except OSError as error:
            self._note_failure('write', path, error)
            with self._lock:
                self._used_bytes -= size
            return PutResult.FAILED
        with self._lock:
            self._sizes[record.key] = size
            self._is_failing = False
        return PutResult.STORED

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        if not self.size_bytes(key):
            return None
        path = self._path(key)
        try:
            with open(path, 'rb') as file:
                record = _read_header(file, key)
                is_whole = record is not None and record.length_bytes == len(out) == file.readinto(out.data)
            now_ns = time.time_ns()  # the file system's own clock ticks too coarsely to order blocks
            os.utime(path, ns=(now_ns, now_ns))
        except OSError as error:
            self._note_failure('read', path, error)
            return None
        if not is_whole or record is None or checksum(out) != record.checksum:
            self._quarantine(key)
            return None
        return record

    def delete(self, key: bytes) -> None:
        with self._lock:
            size = self._sizes.pop(key, 0)
            self._used_bytes -= size
        if size:
            self._unlink(self._path(key))

    def size_bytes(self, key: bytes) -> int:
        with self._lock:
            return self._sizes.get(key, 0)

    def records(self) -> Iterator[BlockRecord]:
        for key in self._keys_by_age():
            path = self._path(key)
            try:
                with open(path, 'rb') as file:
                    record = _read_header(file, key)
                    is_whole = (
                        record is not None and os.fstat(file.fileno()).st_size == file.tell() + record.length_bytes
                    )
            except OSError as error:
                self._note_failure('read', path, error)
                continue
            if is_whole and record is not None:
                yield record
            else:
                self._quarantine(key)

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
            os.close(self._marker)
            self._marker = -1

    def _path(self, key: bytes) -> Path:
        return self._directory / f'{key.hex()}.kv'

    def _scan(self) -> None:
        """Reconcile the books with the directory; drop what a killed writer left half done."""
        for path in self._directory.iterdir():
            if path.suffix == '.tmp':
                path.unlink()
            elif path.suffix == '.bad':
                self._quarantined[path] = _physical(path.stat().st_size)
            elif path.suffix == '.kv' and len(path.stem) == 64:
                self._sizes[bytes.fromhex(path.stem)] = _physical(path.stat().st_size)
        self._used_bytes = sum(self._sizes.values()) + sum(self._quarantined.values())

    def _keys_by_age(self) -> list[bytes]:
        ages = []
        with self._lock:
            keys = list(self._sizes)
        for key in keys:
            with contextlib.suppress(OSError):
                ages.append((self._path(key).stat().st_mtime_ns, key))
        return [key for _, key in sorted(ages)]

    def _claim_room(self, size: int) -> PutResult:
        if size > self._capacity_bytes:
            return PutResult.FAILED
        with self._lock:
            if self._used_bytes + size <= self._capacity_bytes:
                self._used_bytes += size
                return PutResult.STORED
            evidence, self._quarantined = self._quarantined, {}
            self._used_bytes -= sum(evidence.values())
        if not evidence:
            return PutResult.FULL
        for path in evidence:
            self._unlink(path)
        return self._claim_room(size)

    def _quarantine(self, key: bytes) -> None:
        """Keep a corrupt file as evidence, under the capacity, until its room is needed."""
        path = self._path(key)
        with self._lock:
            size = self._sizes.pop(key, 0)
            self._num_corrupt += 1
        _log.warning('disk store: %s is torn or corrupt; set aside, treated as a miss', path)
        evidence = path.with_suffix('.bad')
        try:
            path.replace(evidence)
        except OSError as error:
            self._note_failure('quarantine', path, error)
        with self._lock:
            self._used_bytes -= self._quarantined.get(evidence, 0)
            self._quarantined[evidence] = size

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._note_failure('delete', path, error)

    def _note_failure(self, act: str, path: Path, error: OSError) -> None:
        with self._lock:
            self._num_errors += 1
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
        raise ConfigError(f'disk store {directory}: expected format {_FORMAT!r}, got {found!r}; use an empty directory')
    os.pwrite(marker, _FORMAT, 0)
    return marker


def _write_whole(path: Path, header: bytes, value: ByteArray) -> None:
    temporary = path.with_suffix('.tmp')
    try:
        with open(temporary, 'wb') as file:
            file.write(header)
            file.write(value.data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _pack(record: BlockRecord) -> bytes:
    head = _HEAD.pack(
        _MAGIC,
        record.key,
        record.parent_key,
        record.root,
        record.checksum,
        record.length_bytes,
        len(record.tokens),
    )
    return head + record.tokens + checksum(np.frombuffer(head + record.tokens, dtype=np.uint8))


def _read_header(file: BinaryIO, key: bytes) -> BlockRecord | None:
    """The record at the start of a file, None when it is torn, altered, or not the one of `key`."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, found, parent, root, digest, length, num_token_bytes = _HEAD.unpack(head)
    if magic != _MAGIC or found != key or num_token_bytes > _MAX_TOKEN_BYTES:
        return None
    tokens = file.read(num_token_bytes)
    if file.read(_DIGEST_BYTES) != checksum(np.frombuffer(head + tokens, dtype=np.uint8)):
        return None
    if block_key(parent, tokens) != key:
        return None
    return BlockRecord(key=key, parent_key=parent, root=root, tokens=tokens, length_bytes=length, checksum=digest)


def _physical(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES
