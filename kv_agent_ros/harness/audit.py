"""The audit log: append-only JSON lines, each on the disk before the call returns, chained by hash, sealed by key.

A failing log is a stop: every failure is an AuditError, and nothing moves unrecorded. The chain shows edits inside the
log; the keyed checkpoints show a rewrite of the whole; the head beside the key shows records cut off at the end.
"""

from collections.abc import Callable, Iterator, Mapping
import hashlib
from itertools import islice
from pathlib import Path
import threading
from typing import Protocol

from kv_agent_ros.errors import AuditError
from kv_agent_ros.harness.audit_key import AuditKey, Head
from kv_agent_ros.harness.audit_record import (
    AuditKind,
    AuditRecord,
    Entry,
    MalformedRecordError,
    from_line,
    seal,
    to_line,
)
from kv_agent_ros.harness.durable import DirectoryLock, Write, append_durably
from kv_agent_ros.robot.plan import Json

FILE_PATTERN = 'audit-*.jsonl'


class Audit(Protocol):
    """Where the gate records what it is about to do. Thread-safe."""

    def append(self, entry: Entry) -> AuditRecord:
        """Record it durably. Raises AuditError."""
        ...

    def head(self) -> Head:
        """The newest record's place in the chain."""
        ...

    def select(self, wanted: Callable[[AuditRecord], bool], limit: int) -> tuple[AuditRecord, ...]:
        """The newest `limit` records that are wanted, oldest first. Raises AuditError."""
        ...

    def of_task(self, robot_id: str, task_id: str, limit: int) -> tuple[AuditRecord, ...]:
        """The newest `limit` records of a robot's task, oldest first. Raises AuditError."""
        ...


class AuditLog:
    """An Audit in a directory of files `audit-<number>.jsonl`. Opened by `open_audit_log`; close it."""

    def __init__(
        self,
        *,
        directory: Path,
        key: AuditKey,
        head: Head,
        path: Path,
        clock: Callable[[], float],
        checkpoint_every: int,
        rotate_bytes: int,
        write: Write,
        lock: DirectoryLock,
    ) -> None:
        self._directory = directory
        self._key = key
        self._head = head
        self._path = path
        self._clock = clock
        self._checkpoint_every = checkpoint_every
        self._rotate_bytes = rotate_bytes
        self._write = write
        self._directory_lock = lock
        self._lock = threading.Lock()
        self._tasks: dict[Path, frozenset[tuple[str, str]]] = {}
        self._num_unsealed = 0
        self._is_closed = False

    def __enter__(self) -> 'AuditLog':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, entry: Entry) -> AuditRecord:
        with self._lock:
            if self._is_closed:
                raise AuditError('audit log: expected an open log, it was closed')
            record = self._append(entry)
            self._num_unsealed += 1
            if self._num_unsealed >= self._checkpoint_every:
                self._checkpoint()
            return record

    def head(self) -> Head:
        with self._lock:
            return self._head

    def select(self, wanted: Callable[[AuditRecord], bool], limit: int) -> tuple[AuditRecord, ...]:
        files = reversed(log_files(self._directory))
        backwards = (record for path in files for record in _records_backwards(path) if wanted(record))
        return tuple(reversed(tuple(islice(backwards, limit))))

    def of_task(self, robot_id: str, task_id: str, limit: int) -> tuple[AuditRecord, ...]:
        task, newest = (robot_id, task_id), list[AuditRecord]()
        files = log_files(self._directory)
        for path in reversed(files):
            if len(newest) >= limit:
                break
            if path == files[-1] or task in self._tasks_in(path):
                newest += [record for record in _records_backwards(path) if _task(record) == task]
        return tuple(reversed(newest[:limit]))

    def close(self) -> None:
        """Seal the log; idempotent. Raises AuditError."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                try:
                    self._append(Entry(kind=AuditKind.CLOSED))
                    self._checkpoint()
                finally:
                    self._directory_lock.release()

    def _tasks_in(self, path: Path) -> frozenset[tuple[str, str]]:
        """The robots and tasks of a file that is not written any more; each such file is read once for it."""
        with self._lock:
            known = self._tasks.get(path)
        if known is not None:
            return known
        tasks = frozenset(_task(record) for record in read_records(path))
        with self._lock:
            self._tasks[path] = tasks
        return tasks

    def _append(self, entry: Entry) -> AuditRecord:
        record = seal(self._head.seq + 1, self._clock(), entry, self._head.hash)
        line = to_line(record)
        try:
            if self._path.exists() and self._path.stat().st_size + len(line) > self._rotate_bytes:
                self._path = file_path(self._directory, file_number(self._path) + 1)
            self._write(self._path, line)
        except OSError as error:
            raise AuditError(f'audit log {self._path}: cannot be written: {error}; free the disk') from error
        self._head = Head(seq=record.seq, hash=record.hash)
        return record

    def _checkpoint(self) -> None:
        sealed = self._head
        fields: Mapping[str, Json] = {'mac': self._key.mac(sealed)}
        self._append(Entry(kind=AuditKind.CHECKPOINT, fields=fields))
        self._key.store_head(self._head)
        self._num_unsealed = 0


def open_audit_log(
    directory: Path,
    key: AuditKey,
    clock: Callable[[], float],
    *,
    checkpoint_every: int = 16,
    rotate_bytes: int = 4 << 20,
    write: Write = append_durably,
) -> AuditLog:
    """Open or begin the log in `directory`, taking off a torn last line. Raises AuditError when the log was cut.

    `clock`: ROS time in seconds, for the stamps. The first record of every opening is OPENED.
    """
    lock = _lock(directory)
    try:
        path = (log_files(directory) or (file_path(directory, 1),))[-1]
        torn = _take_off_torn_line(path)
        head = _resume(directory, key)
    except AuditError:
        lock.release()
        raise
    log = AuditLog(
        directory=directory,
        key=key,
        head=head,
        path=path,
        clock=clock,
        checkpoint_every=checkpoint_every,
        rotate_bytes=rotate_bytes,
        write=write,
        lock=lock,
    )
    if torn:
        digest = hashlib.sha256(torn).hexdigest()
        log.append(Entry(kind=AuditKind.TORN, fields={'bytes': len(torn), 'sha256': digest}))
    log.append(Entry(kind=AuditKind.OPENED))
    return log


def log_files(directory: Path) -> tuple[Path, ...]:
    """The files of a log, oldest first."""
    return tuple(sorted(directory.glob(FILE_PATTERN), key=file_number))


def file_path(directory: Path, number: int) -> Path:
    """The file of that number, from 1."""
    return directory / f'audit-{number:06d}.jsonl'


def file_number(path: Path) -> int:
    """The number in a file's name; 0 when there is none."""
    digits = path.stem.removeprefix('audit-')
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def read_records(path: Path) -> tuple[AuditRecord, ...]:
    """The whole lines of a file as records. Raises AuditError when one is none."""
    return tuple(reversed(tuple(_records_backwards(path))))


def _records_backwards(path: Path) -> Iterator[AuditRecord]:
    """The records of a file, the newest first, each read when it is asked for."""
    try:
        content = path.read_bytes()
        for line in reversed(content[: content.rfind(b'\n') + 1].splitlines(keepends=True)):
            yield from_line(line)
    except (OSError, MalformedRecordError) as error:
        raise AuditError(f'audit log {path}: unreadable: {error}; run the verification') from error


def _task(record: AuditRecord) -> tuple[str, str]:
    return record.entry.robot_id, record.entry.task_id


def _lock(directory: Path) -> DirectoryLock:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return DirectoryLock(directory)
    except OSError as error:
        raise AuditError(f'audit log {directory}: expected to be its only writer: {error}') from error


def _take_off_torn_line(path: Path) -> bytes:
    """Cut an unfinished last line (a crash in mid-write) off the file and return it."""
    if not path.exists():
        return b''
    try:
        content = path.read_bytes()
        whole = content.rfind(b'\n') + 1
        if whole < len(content):
            with path.open('r+b') as file:
                file.truncate(whole)
    except OSError as error:
        raise AuditError(f'audit log {path}: cannot be opened: {error}') from error
    return content[whole:]


def _resume(directory: Path, key: AuditKey) -> Head:
    """The newest place of the log, never before the sealed one."""
    head = Head()
    for path in reversed(log_files(directory)):
        records = read_records(path)
        if records:
            head = Head(seq=records[-1].seq, hash=records[-1].hash)
            break
    sealed = key.load_head()
    if head.seq < sealed.seq:
        raise AuditError(
            f'audit log {directory}: expected record {sealed.seq}, which was sealed, but it ends at {head.seq}; '
            f'records were cut off. Keep it as evidence; to begin again, move it and {key.head_path} away'
        )
    return head
