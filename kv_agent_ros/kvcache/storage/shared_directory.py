"""A directory of block files with many owners: claims, publication and deletion that never exceed its capacity.

`blocks/<key>.kv` are blocks, `owners/<name>/<number>.<bytes>.tmp` claims that are being written, `bad/` what is set
aside. All of it counts, in whole pages. An owner lives as long as it holds the lock on its own file.
"""

from collections.abc import Iterator
import contextlib
import fcntl
import itertools
import os
from pathlib import Path
import secrets
import shutil
import time

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.storage.ledger import Books, SharedLedger

_LEDGER = 'LEDGER'
_OWNER_LOCK = 'LOCK'


class SharedDirectory:
    """One owner's door to it. Thread-safe by the ledger. Every method raises OSError when the device fails."""

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._name = secrets.token_hex(8)
        self._owner = directory / 'owners' / self._name
        self._owner_lock = -1
        self._numbers = itertools.count()
        self._page_bytes = os.statvfs(directory).f_frsize
        self._ledger = SharedLedger.open(directory / _LEDGER, self._count)
        self.seen = Books()  # as they were last

    @classmethod
    def open(cls, directory: Path, capacity_bytes: int) -> 'SharedDirectory':
        """Become one of the owners. Raises ConfigError when the directory holds something else."""
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()) and not (directory / _LEDGER).exists():
            raise ConfigError(f'shared store {directory}: expected an empty directory or one of ours, got other files')
        shared = cls(directory, capacity_bytes)
        with shared._held() as books:
            for folder in ('blocks', 'bad', 'owners'):
                (directory / folder).mkdir(exist_ok=True)
            shared._enter()
            shared._bury_dead_owners(books)
            if len(list((directory / 'owners').iterdir())) == 1:  # nobody waits
                books.become(shared._count())
        return shared

    def path(self, key: bytes) -> str:
        """Where a block is, if it is."""
        return f'{self._directory}/blocks/{key.hex()}.kv'

    def physical(self, num_bytes: int) -> int:
        """What a file of this length occupies."""
        return -(-num_bytes // self._page_bytes) * self._page_bytes

    def claim(self, num_bytes: int) -> str:
        """Room for a file, as the path to write it to; '' when there is no room."""
        with self._held() as books:
            if books.used_bytes + num_bytes > self._capacity_bytes:
                return ''
            if not self._owner.exists():  # taken for dead
                self._enter()
            claim = f'{self._owner}/{next(self._numbers)}.{num_bytes}.tmp'
            Path(claim).touch()
            books.used_bytes += num_bytes
            return claim

    def give_back(self, claim: str) -> None:
        """End a claim that was not published."""
        with self._held() as books, contextlib.suppress(FileNotFoundError):
            os.unlink(claim)
            books.used_bytes -= _claimed_bytes(claim)

    def publish(self, claim: str, key: bytes) -> None:
        """Let everybody see what was written under a claim; another owner's equal block stays."""
        path = self.path(key)
        with self._held() as books:
            if os.path.exists(path):
                os.unlink(claim)
                books.used_bytes -= _claimed_bytes(claim)
            else:
                os.rename(claim, path)
                books.num_blocks += 1

    def delete(self, key: bytes) -> None:
        """Free a block; an unknown key is ignored."""
        path = self.path(key)
        with self._held() as books, contextlib.suppress(FileNotFoundError):
            size = self.physical(os.stat(path).st_size)
            os.unlink(path)
            books.used_bytes -= size
            books.num_blocks -= 1

    def set_aside(self, key: bytes) -> None:
        """Keep a bad block as evidence until its room is needed."""
        path = self.path(key)
        evidence = f'{self._directory}/bad/{key.hex()}.bad'
        with self._held() as books, contextlib.suppress(FileNotFoundError):
            older_bytes = self.physical(os.stat(evidence).st_size) if os.path.exists(evidence) else 0
            os.rename(path, evidence)
            books.used_bytes -= older_bytes
            books.num_blocks -= 1

    def tidy(self, recount_s: float) -> int:
        """Take back what nobody needs: dead owners' claims, evidence. Returns the free bytes after it.

        Counts everything again when the last count is older than `recount_s`: somebody may have deleted files.
        """
        with self._held() as books:
            self._bury_dead_owners(books)
            for entry in _files(self._directory / 'bad'):
                books.used_bytes -= self.physical(entry.stat().st_size)
                os.unlink(entry.path)
            if time.time() - books.counted_s > recount_s:
                books.become(self._count())
            return self._capacity_bytes - books.used_bytes

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Time of last use in ns, and key, of everything that is published; in no particular order."""
        for entry in _files(self._directory / 'blocks'):
            with contextlib.suppress(FileNotFoundError, ValueError):
                yield entry.stat().st_mtime_ns, bytes.fromhex(entry.name.removesuffix('.kv'))

    def close(self) -> None:
        """Stop being an owner; idempotent."""
        if self._owner_lock < 0:
            return
        with self._held() as books:
            self._bury(self._owner, books)
        os.close(self._owner_lock)
        self._owner_lock = -1
        self._ledger.close()

    @contextlib.contextmanager
    def _held(self) -> Iterator[Books]:
        with self._ledger.held() as books:
            try:
                yield books
            finally:
                self.seen = books

    def _enter(self) -> None:
        if self._owner_lock >= 0:
            os.close(self._owner_lock)
        self._owner.mkdir()
        self._owner_lock = os.open(self._owner / _OWNER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._owner_lock, fcntl.LOCK_EX)

    def _bury_dead_owners(self, books: Books) -> None:
        for owner in (self._directory / 'owners').iterdir():
            if owner != self._owner and not _is_alive(owner / _OWNER_LOCK):
                self._bury(owner, books)

    def _bury(self, owner: Path, books: Books) -> None:
        for entry in _files(owner):
            os.unlink(entry.path)
            books.used_bytes -= _claimed_bytes(entry.name)
        shutil.rmtree(owner)

    def _count(self) -> Books:
        books = Books(counted_s=time.time())
        for entry in _files(self._directory / 'blocks'):
            books.used_bytes += self.physical(entry.stat().st_size)
            books.num_blocks += 1
        books.used_bytes += sum(self.physical(entry.stat().st_size) for entry in _files(self._directory / 'bad'))
        for owner in (self._directory / 'owners').glob('*'):
            books.used_bytes += sum(_claimed_bytes(entry.name) for entry in _files(owner))
        return books


def _files(directory: Path) -> list[os.DirEntry[str]]:
    """What counts in one folder."""
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.name.endswith(('.kv', '.tmp', '.bad'))]
    except FileNotFoundError:
        return []


def _claimed_bytes(claim: str) -> int:
    return int(claim.rsplit('.', 2)[1])


def _is_alive(owner_lock: Path) -> bool:
    try:
        descriptor = os.open(owner_lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
