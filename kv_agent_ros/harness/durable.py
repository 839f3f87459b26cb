"""Writes that are on the disk when they return. Every failure is an OSError."""

from collections.abc import Callable
import fcntl
import os
from pathlib import Path

Write = Callable[[Path, bytes], None]


class DirectoryLock:
    """This process alone writes in the directory, until `release` or its end. Raises OSError when another does."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / '.lock', os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Let others write; call it once."""
        os.close(self._descriptor)


def append_durably(path: Path, content: bytes) -> None:
    """Append to a file, making it (mode 0600) when it is missing; a failed append leaves the file as it was."""
    is_first = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, content)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    if is_first:
        sync_directory(path.parent)


def replace_durably(path: Path, content: bytes) -> None:
    """Write a whole file so that a crash leaves either the old or the new content."""
    partial = path.with_name(path.name + '.partial')
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(partial, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
