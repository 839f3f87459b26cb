"""One line of the audit log: canonical JSON, hashed together with the hash of the line before it.

Secrets are blanked before hashing, so that a log can be handed over whole. Numbers that JSON cannot say become words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
import hashlib
import json
import math
import re

from kv_agent_ros.robot.plan import Json

GENESIS = '0' * 64  # the hash before the first record
REDACTED = '[redacted]'
MAX_TEXT_CHARS = 4000
SECRET_KEY = re.compile(r'passw|secret|token$|api_?key|authorization|private_?key|credential', re.IGNORECASE)
SECRET_TEXT = re.compile(
    r'-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)'
    r'|(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}'
    r'|\b(?:sk|pk|ghp|gho|hf|xoxb)[-_][A-Za-z0-9_-]{12,}'
    r'|\bAKIA[0-9A-Z]{16}\b'
    r'|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)'
    r'|(?i:\b(?:password|passwd|secret|api_?key|token)\s*[=:]\s*)\S+',
    re.DOTALL,
)


class AuditKind(Enum):
    """What a record is about."""

    OPENED = 'opened'
    """The log was opened; tells the policy in force."""
    TORN = 'torn'
    """The last line was incomplete after a crash and was taken off; its digest is kept."""
    PLAN = 'plan'
    """A plan and its verdict."""
    APPROVAL = 'approval'
    """A person approved or denied a plan."""
    REFUSAL = 'refusal'
    """A step was refused; nothing moved."""
    ACT = 'act'
    """A step is about to be done; written before the robot moves."""
    RESULT = 'result'
    """How an act ended, with what the world said after it."""
    MAKE_SAFE = 'make_safe'
    """The robot was stopped to be made safe."""
    ESTOP = 'estop'
    """The emergency stop was latched."""
    ESTOP_RESET = 'estop_reset'
    """A person reset the emergency stop."""
    CHECKPOINT = 'checkpoint'
    """All records before this one, sealed with the key."""
    CLOSED = 'closed'
    """The log was closed in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What a caller wants recorded. `robot_id` and `task_id` are '' where a record concerns none."""

    kind: AuditKind
    robot_id: str = ''
    task_id: str = ''
    fields: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRecord:
    """An entry in its place: `seq` counts from 1 over all files, `prev_hash` is the hash of the record before."""

    seq: int
    stamp_s: float
    entry: Entry
    prev_hash: str
    hash: str

    def text(self, name: str) -> str:
        """A field as text, '' when absent."""
        return str(self.entry.fields.get(name, ''))


class MalformedRecordError(ValueError):
    """A line that is no audit record."""


def seal(seq: int, stamp_s: float, entry: Entry, prev_hash: str) -> AuditRecord:
    """The record of an entry, redacted, with its hash."""
    clean = Entry(
        kind=entry.kind,
        robot_id=_clean_text(entry.robot_id),
        task_id=_clean_text(entry.task_id),
        fields={_clean_text(name): _clean(name, value) for name, value in entry.fields.items()},
    )
    body = _body(seq, stamp_s, clean, prev_hash)
    return AuditRecord(seq=seq, stamp_s=stamp_s, entry=clean, prev_hash=prev_hash, hash=_digest(body))


def to_line(record: AuditRecord) -> bytes:
    """The record as one line of the file, with its newline."""
    body = _body(record.seq, record.stamp_s, record.entry, record.prev_hash)
    return canonical({**body, 'hash': record.hash}) + b'\n'


def from_line(line: bytes) -> AuditRecord:
    """Read a line back. Raises MalformedRecordError when it is not exactly what `to_line` writes, hash included."""
    try:
        document = json.loads(line)
        record = _from_document(document)
        rewritten = to_line(record)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecordError(f'expected an audit record: {error}') from error
    if rewritten != line.rstrip(b'\n') + b'\n':
        raise MalformedRecordError('expected canonical JSON with exactly the entries of a record')
    body = _body(record.seq, record.stamp_s, record.entry, record.prev_hash)
    if _digest(body) != record.hash:
        raise MalformedRecordError(f'record {record.seq}: the content does not match its hash')
    return record


def _from_document(document: dict[str, Json]) -> AuditRecord:
    seq, stamp_s, fields = document['seq'], document['stamp_s'], document['fields']
    if not isinstance(seq, int) or not isinstance(stamp_s, (int, float)) or not isinstance(fields, Mapping):
        raise TypeError('expected seq and stamp_s as numbers, fields as an object')
    entry = Entry(
        kind=AuditKind(document['kind']),
        robot_id=_text(document, 'robot_id'),
        task_id=_text(document, 'task_id'),
        fields=fields,
    )
    return AuditRecord(
        seq=seq, stamp_s=stamp_s, entry=entry, prev_hash=_text(document, 'prev_hash'), hash=_text(document, 'hash')
    )


def _text(document: Mapping[str, Json], name: str) -> str:
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(f'expected {name} as text')
    return value


def canonical(document: Json) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8; equal values give equal bytes."""
    text = json.dumps(document, sort_keys=True, separators=(',', ':'), ensure_ascii=False, allow_nan=False)
    return text.encode('utf-8')


def _body(seq: int, stamp_s: float, entry: Entry, prev_hash: str) -> dict[str, Json]:
    return {
        'seq': seq,
        'stamp_s': stamp_s,
        'kind': entry.kind.value,
        'robot_id': entry.robot_id,
        'task_id': entry.task_id,
        'fields': entry.fields,
        'prev_hash': prev_hash,
    }


def _digest(body: Mapping[str, Json]) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()


def _clean(name: str, value: Json) -> Json:
    if SECRET_KEY.search(name):
        return REDACTED
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {_clean_text(key): _clean(key, item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_clean('', item) for item in value]
    return value


def _clean_text(text: str) -> str:
    encodable = text[:MAX_TEXT_CHARS].encode('utf-8', 'replace').decode('utf-8')
    return SECRET_TEXT.sub(REDACTED, encodable)
