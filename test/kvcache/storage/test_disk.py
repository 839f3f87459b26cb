"""The disk tier when the disk, its owner or its content is not what it should be."""

import os
from pathlib import Path
import shutil
import subprocess
import sys

import numpy as np
import pytest
from stored_blocks import block

from kv_agent_ros.errors import ConfigError, StoreError
from kv_agent_ros.kvcache.storage.base import PutResult
from kv_agent_ros.kvcache.storage.disk import DiskStore

OPENER = """
import sys
from pathlib import Path
from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.storage.disk import DiskStore
try:
    DiskStore.open(Path(sys.argv[1]), 1 << 20)
except ConfigError as error:
    print(error)
"""


def path_of(store: Path, number: int) -> Path:
    return store / f'{block(number)[0].key.hex()}.kv'


def test_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 1 << 20)
    command = [sys.executable, '-c', OPENER, str(tmp_path)]
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
    held = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    store.close()
    free = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert 'in use by another process' in held.stdout
    assert free.stdout == ''


def test_directory_with_other_files_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / 'thesis.tex').write_text('words')
    with pytest.raises(ConfigError, match='expected an empty directory or one of ours'):
        DiskStore.open(tmp_path, 1 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ['thesis.tex']


@pytest.mark.parametrize('version', [1, 99])
def test_store_of_another_format_is_refused_untouched(tmp_path: Path, version: int) -> None:
    marker = b'kv_agent_ros/blocks/%d\n' % version
    (tmp_path / 'STORE').write_bytes(marker)
    with pytest.raises(ConfigError, match='delete the directory'):
        DiskStore.open(tmp_path, 1 << 20)
    assert (tmp_path / 'STORE').read_bytes() == marker


def test_directory_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    with pytest.raises(StoreError, match='cannot open'):
        DiskStore.open(tmp_path / 'file' / 'store', 1 << 20)


def test_failing_write_is_counted_warned_once_and_costs_no_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore.open(tmp_path / 'store', 1 << 20)
    shutil.rmtree(tmp_path / 'store')
    assert [store.put(*block(number)) for number in range(3)] == [PutResult.FAILED] * 3
    assert (store.usage().num_errors, store.usage().used_bytes) == (3, 0)
    assert len(caplog.records) == 1


def test_file_that_vanished_is_a_counted_miss(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 1 << 20)
    store.put(*block(1))
    path_of(tmp_path, 1).unlink()
    assert store.get(block(1)[0].key, np.zeros(5000, dtype=np.uint8)) is None
    assert store.usage().num_errors == 1


@pytest.mark.parametrize('position', [0, 8, 40, 72, 104, 120, 128, 132, 134, 138, 141, 150, 1000, -1])
def test_any_changed_byte_is_a_miss_and_the_file_is_set_aside(tmp_path: Path, position: int) -> None:
    store = DiskStore.open(tmp_path, 1 << 20)
    store.put(*block(1))
    raw = bytearray(path_of(tmp_path, 1).read_bytes())
    raw[position] ^= 0x10
    path_of(tmp_path, 1).write_bytes(raw)
    assert store.get(block(1)[0].key, np.zeros(5000, dtype=np.uint8)) is None
    assert (store.usage().num_corrupt, store.usage().num_blocks) == (1, 0)
    assert path_of(tmp_path, 1).with_suffix('.bad').exists()


def test_block_under_the_name_of_another_is_never_served(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 1 << 20)
    store.put(*block(1))
    store.put(*block(2))
    shutil.copy(path_of(tmp_path, 1), path_of(tmp_path, 2))
    assert store.get(block(2)[0].key, np.zeros(5000, dtype=np.uint8)) is None


def test_evidence_counts_as_used_until_its_room_is_needed(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 2 * 8192)
    store.put(*block(1))
    path_of(tmp_path, 1).write_bytes(b'torn')
    store.get(block(1)[0].key, np.zeros(5000, dtype=np.uint8))
    assert store.usage().used_bytes == 8192
    assert [store.put(*block(number)) for number in (2, 3)] == [PutResult.STORED] * 2
    assert not list(tmp_path.glob('*.bad'))


def test_books_are_those_of_the_directory_after_a_reopen(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 1 << 20)
    for number in range(3):
        store.put(*block(number))
    (tmp_path / 'half.tmp').write_bytes(bytes(100))
    store.close()
    again = DiskStore.open(tmp_path, 1 << 20)
    assert (again.usage().used_bytes, again.usage().num_blocks) == (3 * 8192, 3)
    assert not (tmp_path / 'half.tmp').exists()
    assert {record.key for record in again.records()} == {block(number)[0].key for number in range(3)}


def test_evidence_counts_as_used_after_a_reopen_too(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 2 * 8192)
    store.put(*block(1))
    raw = bytearray(path_of(tmp_path, 1).read_bytes())
    raw[-1] ^= 1
    path_of(tmp_path, 1).write_bytes(raw)
    store.get(block(1)[0].key, np.zeros(5000, dtype=np.uint8))
    store.close()
    again = DiskStore.open(tmp_path, 2 * 8192)
    assert (again.usage().used_bytes, again.usage().num_blocks) == (8192, 0)
    assert [again.put(*block(number)) for number in (2, 3)] == [PutResult.STORED] * 2
    assert sum(path.stat().st_size for path in tmp_path.glob('*.[kb]*')) <= 2 * 8192


def test_what_was_read_last_is_still_the_youngest_after_a_reopen(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, 1 << 20)
    for number in range(3):
        store.put(*block(number))
    written_ns = path_of(tmp_path, 0).stat().st_mtime_ns
    assert store.get(block(0)[0].key, np.zeros(5000, dtype=np.uint8)) is not None
    assert path_of(tmp_path, 0).stat().st_mtime_ns == written_ns  # a read waits for no write
    store.close()
    again = DiskStore.open(tmp_path, 1 << 20)
    assert [record.key for record in again.records()] == [block(number)[0].key for number in (1, 2, 0)]
