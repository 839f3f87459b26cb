"""What a shared directory holds, in one small file that its owners keep together, one at a time.

A holder that is killed in the middle leaves the ledger marked as open; the next one counts the directory again.
"""

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
import fcntl
import os
from pathlib import Path
import struct
import threading

from xxhash import xxh3_128_digest

from kv_agent_ros.errors import ConfigError

_FORMAT = b'kv_agent_ros/shared/3\n\0\0'
_ENTRY = struct.Struct('<24s?QQd')  # format, whether somebody is changing it, the fields of Books; then a checksum


@dataclass(kw_only=True, slots=True)
class Books:
    """What is booked, to be changed while the ledger is held."""

    used_bytes: int = 0
    num_blocks: int = 0
    counted_s: float = 0.0  # when the directory was last counted, Unix time

    def become(self, counted: 'Books') -> None:
        """Take over a fresh count."""
        self.used_bytes, self.num_blocks, self.counted_s = counted.used_bytes, counted.num_blocks, counted.counted_s


class SharedLedger:
    """The ledger of one directory. Safe between threads, processes, and hosts whose file system shares flock()."""

    def __init__(self, descriptor: int, count: Callable[[], Books]) -> None:
        self._descriptor = descriptor
        self._count = count
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, count: Callable[[], Books]) -> 'SharedLedger':
        """Open or create; `count` is called with the ledger held. Raises ConfigError for a file of another format."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        found = os.pread(descriptor, len(_FORMAT), 0)
        if found and found != _FORMAT:
            os.close(descriptor)
            raise ConfigError(
                f'shared store {path.parent}: expected format {_FORMAT!r}, got {found!r} of another version; '
                'delete the directory, it is a cache and fills again, or name an empty one'
            )
        return cls(descriptor, count)

    @contextlib.contextmanager
    def held(self) -> Iterator[Books]:
        """The books, held by this caller alone, written back at the end. Raises OSError."""
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                books = self._read()
                self._write(books, is_open=True)
                try:
                    yield books
                finally:
                    self._write(books, is_open=False)
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> Books:
        entry = os.pread(self._descriptor, _ENTRY.size + 16, 0)
        if entry[_ENTRY.size :] != xxh3_128_digest(entry[: _ENTRY.size]):  # also of a file that was just made
            return self._count()
        _, is_open, used_bytes, num_blocks, counted_s = _ENTRY.unpack_from(entry)
        if is_open:
            return self._count()
        return Books(used_bytes=used_bytes, num_blocks=num_blocks, counted_s=counted_s)

    def _write(self, books: Books, *, is_open: bool) -> None:
        entry = _ENTRY.pack(_FORMAT, is_open, max(0, books.used_bytes), max(0, books.num_blocks), books.counted_s)
        os.pwrite(self._descriptor, entry + xxh3_128_digest(entry), 0)
