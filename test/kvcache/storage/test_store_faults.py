"""Damage to what a store holds, wherever it is: never a wrong byte, never an exception, the room comes back."""

from collections.abc import Callable
import os
from pathlib import Path
import resource
import subprocess
import sys
import tempfile
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from stored_blocks import block, physical_bytes, read

from kv_agent_ros.kvcache.storage.base import BlockStore, PutResult
from kv_agent_ros.kvcache.storage.device import DeviceStore
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.remote import RemoteStore

CAPACITY_BYTES = 8 * 8192
NUM_BLOCKS = 4
FILE_STORES: dict[str, Callable[[Path], BlockStore]] = {
    'disk': lambda path: DiskStore.open(path, CAPACITY_BYTES),
    'remote': lambda path: RemoteStore.open(path, CAPACITY_BYTES),
}


FULL_DISK = """
from pathlib import Path
import subprocess
import sys
from stored_blocks import block, physical_bytes, read
from kv_agent_ros.kvcache.storage.base import PutResult
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore
from kv_agent_ros.kvcache.storage.remote import RemoteStore
subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=512k', 'tmpfs', sys.argv[2]], check=True)
directory = Path(sys.argv[2]) / 'store'
store = GuardedStore({'disk': DiskStore, 'remote': RemoteStore}[sys.argv[1]].open(directory, 1 << 30))
results = [store.put(*block(number)) for number in range(100)]
num_stored = results.index(PutResult.FULL)
assert num_stored > 20 and set(results[num_stored:]) == {PutResult.FULL}, results
assert all(read(store, number) for number in range(num_stored))
assert not any(read(store, number) for number in range(num_stored, 100))
assert not list(directory.rglob('*.tmp'))
assert store.usage().used_bytes == physical_bytes(directory)
store.delete(block(0)[0].key)
assert store.put(*block(0)) is PutResult.STORED
assert (store.usage().num_errors, store.usage().num_corrupt, store.usage().is_degraded) == (0, 0, False)
print('held')
"""


def flip(path: Path, position: int, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position % len(raw)] ^= 1 << bit
    path.write_bytes(raw)


def truncate(path: Path, position: int, bit: int) -> None:
    os.truncate(path, position % path.stat().st_size)


def remove(path: Path, position: int, bit: int) -> None:
    path.unlink()


def fill_with_zeros(path: Path, position: int, bit: int) -> None:
    """What a file system may leave after a loss of power."""
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: position % size] + bytes(size - position % size))


@pytest.mark.parametrize('kind', FILE_STORES)
@pytest.mark.parametrize('damage', [flip, truncate, remove, fill_with_zeros])
@settings(max_examples=15, deadline=None)
@given(
    number=st.integers(0, NUM_BLOCKS - 1), position=st.integers(0, 1 << 20), bit=st.integers(0, 7), again=st.booleans()
)
def test_damaged_file_is_a_miss_and_nothing_else_suffers(
    kind: str, damage: Callable[[Path, int, int], None], number: int, position: int, bit: int, again: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / 'store'
        store = FILE_STORES[kind](directory)
        for other in range(NUM_BLOCKS):
            assert store.put(*block(other)) is PutResult.STORED
        path = next(directory.rglob(f'{block(number)[0].key.hex()}.kv'))
        damage(path, position, bit)
        if again:
            store.close()
            store = FILE_STORES[kind](directory)
            list(store.records())
        assert [read(store, other) for other in range(NUM_BLOCKS)] == [other != number for other in range(NUM_BLOCKS)]
        assert store.put(*block(number)) is PutResult.STORED
        assert read(store, number)
        assert physical_bytes(directory) <= CAPACITY_BYTES
        for other in range(100, 108):
            if store.put(*block(other)) is PutResult.FULL:
                store.delete(block(other - 100)[0].key)
            assert physical_bytes(directory) <= CAPACITY_BYTES
        store.close()


@given(position=st.integers(0, 4999), bit=st.integers(0, 7))
@settings(max_examples=25, deadline=None)
def test_flipped_bit_in_shared_or_device_memory_is_a_counted_miss(position: int, bit: int) -> None:
    host = HostStore(SharedArena.create(CAPACITY_BYTES))
    device = DeviceStore.create(CAPACITY_BYTES, 8192, 'cpu')
    for store in (host, device):
        assert store.put(*block(1)) is PutResult.STORED
        assert store.put(*block(2)) is PutResult.STORED
    host.view(host.slot(block(1)[0].key))[position] ^= 1 << bit
    device.row(block(1)[0].key)[position] ^= 1 << bit
    for damaged in (host, device):
        assert [read(damaged, 1), read(damaged, 2)] == [False, True]
        assert (damaged.usage().num_corrupt, damaged.usage().num_blocks) == (1, 1)
    host.close()


@given(position=st.integers(0, 64), bit=st.integers(0, 7))
@settings(max_examples=15, deadline=None)
def test_flipped_bit_in_a_ledger_is_counted_again(position: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = RemoteStore.open(Path(folder) / 'store', CAPACITY_BYTES)
        store.put(*block(1))
        flip(Path(folder) / 'store' / 'LEDGER', position, bit)
        assert store.put(*block(2)) is PutResult.STORED
        assert store.usage().used_bytes == physical_bytes(Path(folder)) == 2 * 8192
        store.close()


@pytest.mark.parametrize('kind', FILE_STORES)
def test_file_of_a_later_block_under_an_earlier_name_is_a_miss(tmp_path: Path, kind: str) -> None:
    store = FILE_STORES[kind](tmp_path / 'store')
    for number in (1, 2):
        store.put(*block(number))
    first, second = (next(tmp_path.rglob(f'{block(number)[0].key.hex()}.kv')) for number in (1, 2))
    first.write_bytes(second.read_bytes())
    assert [read(store, 1), read(store, 2)] == [False, True]
    store.close()


@pytest.mark.parametrize('kind', FILE_STORES)
def test_reads_beside_deletes_and_puts_of_the_same_blocks_are_right_or_misses(tmp_path: Path, kind: str) -> None:
    store = FILE_STORES[kind](tmp_path / 'store')
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(NUM_BLOCKS):
                store.put(*block(number))
                store.delete(block(number)[0].key)

    writers = [threading.Thread(target=churn) for _ in range(2)]
    for writer in writers:
        writer.start()
    num_hits, end_s = 0, time.monotonic() + 60.0
    while num_hits < 50 and time.monotonic() < end_s:
        num_hits += sum(read(store, number) for number in range(NUM_BLOCKS))
    stop.set()
    for writer in writers:
        writer.join(60)
    assert num_hits >= 50
    assert store.usage().num_corrupt == 0
    for number in range(NUM_BLOCKS):
        store.put(*block(number))
        store.delete(block(number)[0].key)
    assert store.usage().used_bytes == physical_bytes(tmp_path) == 0
    store.close()


def test_one_corrupt_file_found_twice_stays_in_the_books_once(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path / 'store', CAPACITY_BYTES)
    for _ in range(3):
        store.put(*block(1))
        flip(next(tmp_path.rglob('*.kv')), 3000, 1)
        readers = [threading.Thread(target=read, args=(store, 1)) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(60)
        assert store.usage().used_bytes == physical_bytes(tmp_path) <= 8192
    assert store.usage().num_corrupt == 3


def test_file_that_cannot_be_deleted_stays_in_the_books_until_it_can(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path / 'store', 2 * 8192)
    store.put(*block(1))
    path = next(tmp_path.rglob('*.kv'))
    path.unlink()
    path.mkdir()  # unlink() fails, also for the superuser
    store.delete(block(1)[0].key)
    assert not read(store, 1)
    assert (store.usage().used_bytes, store.usage().num_blocks, store.usage().num_errors) == (8192, 0, 1)
    path.rmdir()
    assert [store.put(*block(number)) for number in (2, 3)] == [PutResult.STORED] * 2
    assert store.usage().used_bytes == physical_bytes(tmp_path) == 2 * 8192


@pytest.mark.parametrize('kind', ['disk', 'remote'])
def test_full_disk_refuses_what_is_too_much_and_keeps_serving_the_rest(tmp_path: Path, kind: str) -> None:
    (tmp_path / 'small').mkdir()
    alone = ['unshare', '--user', '--map-root-user', '--mount']
    if subprocess.run([*alone, 'true'], capture_output=True).returncode:
        pytest.skip('this user may not mount a small file system')
    ended = subprocess.run(
        [*alone, sys.executable, '-c', FULL_DISK, kind, str(tmp_path / 'small')],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout == 'held\n', ended.stderr


@pytest.mark.parametrize('kind', FILE_STORES)
def test_write_that_breaks_off_in_the_middle_leaves_nothing(tmp_path: Path, kind: str) -> None:
    store = FILE_STORES[kind](tmp_path / 'store')
    soft_bytes, hard_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard_bytes))
    try:
        assert store.put(*block(1)) is PutResult.FAILED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_bytes, hard_bytes))
    assert (store.usage().num_errors, store.usage().used_bytes) == (1, 0)
    assert physical_bytes(tmp_path) == 0
    assert store.put(*block(1)) is PutResult.STORED
    assert read(store, 1)
    store.close()
