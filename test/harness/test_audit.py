"""The audit log shows every way of tampering with it, survives crashes, and fails loudly."""

from collections.abc import Callable
import json
from pathlib import Path
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import pytest

from kv_agent_ros.errors import AuditError, ConfigError
from kv_agent_ros.harness.audit import AuditLog, log_files, open_audit_log
from kv_agent_ros.harness.audit_key import AuditKey, Head, load_audit_key
from kv_agent_ros.harness.audit_record import (
    GENESIS,
    AuditKind,
    Entry,
    MalformedRecordError,
    from_line,
    seal,
    to_line,
)
from kv_agent_ros.harness.audit_verify import verify
from kv_agent_ros.robot.plan import Json


def clock() -> float:
    return 12.5


class Place:
    """A log directory and its key, side by side."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / 'audit'
        self.key: AuditKey = load_audit_key(tmp_path / 'keys' / 'audit.key', self.directory)

    def open(self, rotate_bytes: int = 1 << 20, checkpoint_every: int = 4) -> AuditLog:
        return open_audit_log(
            self.directory, self.key, clock, checkpoint_every=checkpoint_every, rotate_bytes=rotate_bytes
        )

    def fill(self, num_records: int, rotate_bytes: int = 1 << 20) -> None:
        with self.open(rotate_bytes) as log:
            for index in range(num_records):
                log.append(
                    Entry(kind=AuditKind.ACT, robot_id='robot1', task_id=f'task{index % 2}', fields={'n': index})
                )

    def lines(self) -> list[bytes]:
        return log_files(self.directory)[0].read_bytes().splitlines(keepends=True)

    def put_lines(self, lines: list[bytes]) -> None:
        log_files(self.directory)[0].write_bytes(b''.join(lines))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_log_closed_in_order_verifies_and_is_sealed_whole(place: Place) -> None:
    place.fill(10)
    report = verify(place.directory, place.key)
    assert report.is_ok, report.reason
    assert report.num_records == report.num_sealed == len(place.lines())


def edit(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"n":3', b'"n":4') for line in lines]


def edit_with_its_hash(lines: list[bytes]) -> list[bytes]:
    record = from_line(lines[4])
    forged = seal(record.seq, record.stamp_s, Entry(kind=AuditKind.ACT), record.prev_hash)
    return [*lines[:4], to_line(forged), *lines[5:]]


def delete(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], *lines[5:]]


def insert(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[4], *lines[4:]]


def reorder(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


def truncate_tail(lines: list[bytes]) -> list[bytes]:
    return lines[:-2]


def tear_sealed_tail(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], lines[-1][:-9]]


def empty(lines: list[bytes]) -> list[bytes]:
    return []


def rewrite_without_key(lines: list[bytes]) -> list[bytes]:
    """The whole chain again, consistent, one record changed, the checkpoints copied as they were."""
    head, result = Head(), []
    for line in lines:
        old = from_line(line)
        entry = Entry(kind=old.entry.kind, fields={'n': 99}) if old.entry.kind is AuditKind.ACT else old.entry
        record = seal(old.seq, old.stamp_s, entry, head.hash)
        head = Head(seq=record.seq, hash=record.hash)
        result.append(to_line(record))
    return result


def rewrite_without_checkpoints(lines: list[bytes]) -> list[bytes]:
    """The whole chain again, every checkpoint replaced by an act."""
    head, result = Head(), []
    for line in lines:
        record = seal(from_line(line).seq, 12.5, Entry(kind=AuditKind.ACT), head.hash)
        head = Head(seq=record.seq, hash=record.hash)
        result.append(to_line(record))
    return result


@pytest.mark.parametrize(
    'tamper',
    [
        edit,
        edit_with_its_hash,
        delete,
        insert,
        reorder,
        truncate_tail,
        tear_sealed_tail,
        empty,
        rewrite_without_key,
        rewrite_without_checkpoints,
    ],
)
def test_tampering_is_found_with_place_and_reason(place: Place, tamper: Callable[[list[bytes]], list[bytes]]) -> None:
    place.fill(10)
    place.put_lines(tamper(place.lines()))
    report = verify(place.directory, place.key)
    assert not report.is_ok
    assert report.first_bad
    assert report.reason


def test_log_with_a_cut_tail_is_not_opened_again(place: Place) -> None:
    place.fill(10)
    place.put_lines(truncate_tail(place.lines()))
    with pytest.raises(AuditError, match='cut off'):
        place.open()


def test_rotation_carries_the_chain_over_files(place: Place) -> None:
    place.fill(40, rotate_bytes=2000)
    assert len(log_files(place.directory)) > 3
    assert verify(place.directory, place.key).is_ok


def test_swapped_files_are_found(place: Place) -> None:
    place.fill(40, rotate_bytes=2000)
    first, second = log_files(place.directory)[:2]
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    assert verify(place.directory, place.key).first_bad == f'{first.name}:1'


def test_missing_middle_file_is_found(place: Place) -> None:
    place.fill(40, rotate_bytes=2000)
    log_files(place.directory)[1].unlink()
    assert 'missing' in verify(place.directory, place.key).reason


def test_torn_last_line_is_tolerated_reported_and_kept_as_digest(place: Place) -> None:
    place.fill(3)
    with log_files(place.directory)[0].open('ab') as file:
        file.write(b'{"fields":{"half')
    report = verify(place.directory, place.key)
    assert report.is_ok
    assert report.torn_bytes == 16
    with place.open() as again:
        torn = again.select(lambda record: record.entry.kind is AuditKind.TORN, 5)
    assert torn[0].entry.fields['bytes'] == 16
    assert verify(place.directory, place.key).is_ok


def test_log_has_one_writer_at_a_time(place: Place) -> None:
    with place.open(), pytest.raises(AuditError, match='only writer'):
        place.open()
    place.open().close()


def test_log_that_was_refused_is_not_left_locked(place: Place) -> None:
    place.fill(10)
    lines = place.lines()
    place.put_lines(truncate_tail(lines))
    with pytest.raises(AuditError, match='cut off'):
        place.open()
    place.put_lines(lines)
    place.open().close()


def test_records_after_a_crash_follow_the_ones_before(place: Place) -> None:
    code = (
        'import os, pathlib, sys\n'
        'from kv_agent_ros.harness.audit import open_audit_log\n'
        'from kv_agent_ros.harness.audit_key import load_audit_key\n'
        'from kv_agent_ros.harness.audit_record import AuditKind, Entry\n'
        'directory, key = map(pathlib.Path, sys.argv[1:])\n'
        'log = open_audit_log(directory, load_audit_key(key, directory), lambda: 1.0)\n'
        'log.append(Entry(kind=AuditKind.ACT, task_id="before the crash"))\n'
        'os.kill(os.getpid(), 9)\n'
    )
    key = place.directory.parent / 'keys' / 'audit.key'
    killed = subprocess.run([sys.executable, '-c', code, place.directory, key], timeout=60.0, check=False)
    assert killed.returncode == -9
    with place.open() as log:
        found = log.select(lambda record: record.entry.task_id == 'before the crash', 5)
    assert len(found) == 1
    assert verify(place.directory, place.key).is_ok


def test_wrong_key_does_not_verify(place: Place, tmp_path: Path) -> None:
    place.fill(10)
    other = load_audit_key(tmp_path / 'keys' / 'other.key', place.directory)
    assert not verify(place.directory, other).is_ok


def test_log_goes_on_where_it_ended(place: Place) -> None:
    place.fill(3)
    place.fill(3)
    report = verify(place.directory, place.key)
    assert report.is_ok
    assert report.num_records == len(place.lines())


def test_select_reads_no_further_back_than_it_must(place: Place) -> None:
    place.fill(20)
    with place.open() as log:
        place.put_lines([b'{}\n', *place.lines()[1:]])
        found = log.select(lambda record: record.entry.task_id == 'task1', 2)
        with pytest.raises(AuditError, match='unreadable'):
            log.select(lambda record: record.entry.task_id == 'task1', 99)
    assert [record.entry.fields['n'] for record in found] == [17, 19]


@pytest.mark.parametrize('limit', [1, 3, 99])
@pytest.mark.parametrize('task_id', ['task0', 'task1', 'late', 'never'])
def test_records_of_a_task_are_those_that_select_finds(place: Place, task_id: str, limit: int) -> None:
    place.fill(20, rotate_bytes=900)
    with place.open(900) as log:
        for _ in range(3):
            log.append(Entry(kind=AuditKind.ACT, robot_id='robot1', task_id='late'))
            log.append(Entry(kind=AuditKind.ACT, robot_id='robot2', task_id=task_id))
            wanted = log.select(
                lambda record: (record.entry.robot_id, record.entry.task_id) == ('robot1', task_id), limit
            )
            assert log.of_task('robot1', task_id, limit) == wanted


def test_old_file_is_read_once_for_tasks_that_are_not_in_it(place: Place) -> None:
    place.fill(20, rotate_bytes=900)
    with place.open(900) as log:
        log.append(Entry(kind=AuditKind.ACT, robot_id='robot1', task_id='late'))
        before = log.of_task('robot1', 'late', 99)
        log_files(place.directory)[0].unlink()
        log_files(place.directory)[0].write_bytes(b'{}\n')
        assert log.of_task('robot1', 'late', 99) == before
        with pytest.raises(AuditError, match='unreadable'):
            log.of_task('robot1', 'task1', 99)


def test_select_gives_the_newest_in_order_over_files(place: Place) -> None:
    with place.open(rotate_bytes=1500) as log:
        for index in range(20):
            log.append(Entry(kind=AuditKind.ACT, task_id=f'task{index % 2}', fields={'n': index}))
        found = log.select(lambda record: record.entry.task_id == 'task1', 3)
    assert [record.entry.fields['n'] for record in found] == [15, 17, 19]


def test_full_disk_is_an_audit_error_and_the_chain_stays_whole(place: Place) -> None:
    is_full = [False]

    def write(path: Path, content: bytes) -> None:
        if is_full[0]:
            raise OSError(28, 'No space left on device')
        with path.open('ab') as file:
            file.write(content)

    log = open_audit_log(place.directory, place.key, clock, write=write)
    is_full[0] = True
    with pytest.raises(AuditError, match='No space left'):
        log.append(Entry(kind=AuditKind.ACT))
    is_full[0] = False
    log.append(Entry(kind=AuditKind.ACT))
    log.close()
    assert verify(place.directory, place.key).is_ok


def test_closed_log_refuses_records(place: Place) -> None:
    log = place.open()
    log.close()
    with pytest.raises(AuditError, match='closed'):
        log.append(Entry(kind=AuditKind.ACT))


def test_key_is_made_private_and_outside_the_log(place: Place, tmp_path: Path) -> None:
    path = tmp_path / 'keys' / 'audit.key'
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match='outside'):
        load_audit_key(place.directory / 'audit.key', place.directory)


def test_key_that_others_can_read_is_refused(place: Place, tmp_path: Path) -> None:
    path = tmp_path / 'keys' / 'audit.key'
    path.chmod(0o644)
    with pytest.raises(ConfigError, match='chmod 600'):
        load_audit_key(path, place.directory)


@pytest.mark.parametrize(
    'text',
    [
        'use sk-abcdefghijklmnop1234 please',
        'Authorization: Bearer abcdef123456789',
        'https://me:hunter2@example.org/',
        'password=hunter2',
        '-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----',
    ],
)
def test_secrets_in_text_never_reach_the_line(text: str) -> None:
    line = to_line(seal(1, 0.0, Entry(kind=AuditKind.RESULT, fields={'message': text}), GENESIS)).decode()
    assert '[redacted]' in line
    assert not any(secret in line for secret in ('abcdef', 'hunter2', 'MIIE'))


def test_secret_by_name_never_reaches_the_line() -> None:
    fields: dict[str, Json] = {'api_key': 'abc', 'inner': {'password': ['x']}}
    line = to_line(seal(1, 0.0, Entry(kind=AuditKind.ACT, fields=fields), GENESIS))
    assert json.loads(line)['fields'] == {'api_key': '[redacted]', 'inner': {'password': '[redacted]'}}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4), st.text(max_size=8))
def test_any_entry_reads_back_as_it_was_sealed(fields: dict[str, Json], task_id: str) -> None:
    record = seal(7, 3.25, Entry(kind=AuditKind.ACT, task_id=task_id, fields=fields), GENESIS)
    assert from_line(to_line(record)) == record


@given(st.binary(max_size=60))
def test_any_other_bytes_are_no_record(line: bytes) -> None:
    with pytest.raises(MalformedRecordError):
        from_line(line)
