"""The verification of an audit log by whoever holds the key: is it whole, and if not, where does it break and why."""

from dataclasses import dataclass
from pathlib import Path

from kv_agent_ros.errors import AuditError
from kv_agent_ros.harness.audit import file_number, log_files
from kv_agent_ros.harness.audit_key import AuditKey, Head
from kv_agent_ros.harness.audit_record import AuditKind, AuditRecord, MalformedRecordError, from_line


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """What the verification found. `first_bad` is 'file:line', '' when the log is whole.

    Records after the newest checkpoint (`num_records - num_sealed`) are chained, but not yet protected by the key.
    """

    is_ok: bool
    num_records: int
    num_sealed: int
    torn_bytes: int = 0  # an unfinished last line: a crash, tolerated
    first_bad: str = ''
    reason: str = ''


class _BrokenLogError(Exception):
    """The place and the reason of the first break."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class _Walk:
    """The state of one pass over the log."""

    def __init__(self, key: AuditKey, sealed: Head) -> None:
        self.key = key
        self.sealed = sealed
        self.at = Head()
        self.num_sealed = 0
        self.torn_bytes = 0

    def file(self, path: Path, number: int) -> None:
        """Read one file; only the last may end in a torn line, which the caller decides."""
        if file_number(path) != number:
            raise _BrokenLogError(path.name, f'expected file number {number}; one is missing or was renamed')
        if self.torn_bytes:
            raise _BrokenLogError(path.name, 'the file before ends in an unfinished line')
        for index, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if line.endswith(b'\n'):
                self.line(f'{path.name}:{index}', line)
            else:
                self.torn_bytes = len(line)

    def line(self, place: str, line: bytes) -> None:
        """Follow the chain by one record."""
        try:
            record = from_line(line)
        except MalformedRecordError as error:
            raise _BrokenLogError(place, str(error)) from error
        if record.seq != self.at.seq + 1:
            raise _BrokenLogError(place, f'expected record {self.at.seq + 1}, got {record.seq}')
        if record.prev_hash != self.at.hash:
            raise _BrokenLogError(place, f'record {record.seq} does not follow the record before it')
        self._checkpoint(place, record)
        self.at = Head(seq=record.seq, hash=record.hash)
        if self.at.seq == self.sealed.seq and self.at.hash != self.sealed.hash:
            raise _BrokenLogError(place, f'record {record.seq} is not the one that was sealed; the log was rewritten')

    def _checkpoint(self, place: str, record: AuditRecord) -> None:
        if record.entry.kind is not AuditKind.CHECKPOINT:
            return
        if not self.key.is_seal_of(self.at, record.text('mac')):
            raise _BrokenLogError(place, f'checkpoint {record.seq} was not made with this key')
        self.num_sealed = record.seq


def verify(directory: Path, key: AuditKey) -> AuditReport:
    """Check every record, checkpoint and the sealed head. Never raises for what is wrong with the log itself."""
    try:
        walk = _Walk(key, key.load_head())
    except AuditError as error:
        return AuditReport(is_ok=False, num_records=0, num_sealed=0, first_bad=key.head_path.name, reason=str(error))
    try:
        for number, path in enumerate(log_files(directory), start=1):
            walk.file(path, number)
        if walk.at.seq < walk.sealed.seq:
            reason = f'expected record {walk.sealed.seq}, which was sealed, but the log ends at {walk.at.seq}'
            raise _BrokenLogError('end of the log', reason)
    except _BrokenLogError as error:
        return _report(walk, error.place, error.reason)
    except OSError as error:
        return _report(walk, str(directory), f'unreadable: {error}')
    return _report(walk, '', '')


def _report(walk: _Walk, place: str, reason: str) -> AuditReport:
    return AuditReport(
        is_ok=not reason,
        num_records=walk.at.seq,
        num_sealed=walk.num_sealed,
        torn_bytes=walk.torn_bytes,
        first_bad=place,
        reason=reason,
    )
