"""One directory, several owners: what one puts the other gets, the cap holds over both, and the dead leave nothing."""

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import random
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from stored_blocks import block, chain, physical_bytes, read

from kv_agent_ros.errors import ConfigError, StoreError
from kv_agent_ros.kvcache.storage.base import PutResult
from kv_agent_ros.kvcache.storage.remote import RemoteStore

WRITER = """
from pathlib import Path
import sys
from stored_blocks import block
from kv_agent_ros.kvcache.storage.remote import RemoteStore
directory, capacity_bytes, first, last = Path(sys.argv[1]), *map(int, sys.argv[2:])
store = RemoteStore.open(directory, capacity_bytes)
print('open', flush=True)
for number in range(first, last):
    print(store.put(*block(number)).value, flush=True)
store.close()
"""

DIES_WITH_THE_LEDGER = """
import os
from pathlib import Path
import signal
import sys
from kv_agent_ros.kvcache.storage.shared_directory import SharedDirectory
with SharedDirectory.open(Path(sys.argv[1]), 1 << 20)._held() as books:
    books.used_bytes = 77
    os.kill(os.getpid(), signal.SIGKILL)
"""

Opener = Callable[..., RemoteStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Opener]:
    opened: list[RemoteStore] = []

    def make(capacity_bytes: int = 1 << 20) -> RemoteStore:
        opened.append(RemoteStore.open(tmp_path / 'shared', capacity_bytes))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def start_writer(directory: Path, capacity_bytes: int, first: int, last: int) -> 'subprocess.Popen[bytes]':
    arguments = [str(directory / 'shared'), str(capacity_bytes), str(first), str(last)]
    writer = subprocess.Popen(
        [sys.executable, '-c', WRITER, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b'open\n'
    return writer


def test_what_another_process_puts_is_got_listed_and_booked_here(tmp_path: Path, open_store: Opener) -> None:
    store = open_store()
    writer = start_writer(tmp_path, 1 << 20, 0, 3)
    output, _ = writer.communicate(timeout=60)
    assert output == b'stored\n' * 3
    assert [read(store, number) for number in range(4)] == [True, True, True, False]
    assert {record.key for record in store.records()} == {block(number)[0].key for number in range(3)}
    assert store.put(*block(9)) is PutResult.STORED
    assert (store.usage().used_bytes, store.usage().num_blocks) == (4 * 8192, 4)


def test_two_processes_at_the_cap_never_exceed_it_together(tmp_path: Path, open_store: Opener) -> None:
    capacity_bytes = 20 * 8192
    store = open_store(capacity_bytes)
    writers = [start_writer(tmp_path, capacity_bytes, first, first + 80) for first in (1000, 2000)]
    peak_bytes = 0
    while any(writer.poll() is None for writer in writers):
        with store._shared._held():  # nothing moves from claim to block while it is counted
            peak_bytes = max(peak_bytes, physical_bytes(tmp_path / 'shared'))
    for writer in writers:
        output, _ = writer.communicate(timeout=60)
        assert set(output.splitlines()) <= {b'stored', b'full'}
        assert output.count(b'stored') > 40
    assert 0 < peak_bytes <= capacity_bytes
    assert store.put(*block(1)) is PutResult.STORED
    assert store.usage().used_bytes == physical_bytes(tmp_path / 'shared')
    assert store.usage().num_blocks == len(list(store.records()))


def test_killed_owners_leave_no_claim_no_torn_block_and_right_books(tmp_path: Path, open_store: Opener) -> None:
    store = open_store(200 * 8192)
    generator = random.Random(1)
    for kill in range(5):
        writer = start_writer(tmp_path, 200 * 8192, kill * 1000, kill * 1000 + 1000)
        assert writer.stdout is not None
        for _ in range(generator.randrange(1, 60)):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait(60)
        writer.stdout.close()
        assert physical_bytes(tmp_path / 'shared') <= 200 * 8192
    for number in range(10000, 10250):
        assert store.put(*block(number)) is PutResult.STORED
    assert len(list((tmp_path / 'shared' / 'owners').iterdir())) == 1
    assert store.usage().used_bytes == physical_bytes(tmp_path / 'shared')
    assert all(read(store, int.from_bytes(record.tokens, 'little')) for record in store.records())
    assert store.usage().num_corrupt == 0


def test_owner_killed_while_it_holds_the_ledger_makes_the_next_one_count_again(
    tmp_path: Path, open_store: Opener
) -> None:
    store = open_store()
    store.put(*block(1))
    ended = subprocess.run(
        [sys.executable, '-c', DIES_WITH_THE_LEDGER, str(tmp_path / 'shared')],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL
    assert store.put(*block(2)) is PutResult.STORED
    assert store.usage().used_bytes == 2 * 8192


def test_full_store_evicts_the_longest_unused_and_tails_before_heads(tmp_path: Path, open_store: Opener) -> None:
    store = open_store(5 * 8192)
    old = chain(3)
    for record, value in old:
        store.put(record, value)
    store.put(*block(50))
    store.put(*block(51))
    for number, key in enumerate([*(record.key for record, _ in old), block(50)[0].key, block(51)[0].key]):
        os.utime(store._shared.path(key), (number, number))
    assert store.put(*block(52)) is PutResult.STORED
    here = {record.key for record in store.records()}
    assert old[0][0].key in here
    assert old[2][0].key not in here
    assert {block(number)[0].key for number in (50, 51, 52)} <= here


def test_use_by_one_owner_protects_a_block_from_eviction_by_another(open_store: Opener) -> None:
    ours, theirs = open_store(4 * 8192), open_store(4 * 8192)
    for number in range(4):
        ours.put(*block(number))
        os.utime(ours._shared.path(block(number)[0].key), (number, number))
    assert read(theirs, 0)
    ours.put(*block(9))
    assert read(ours, 0)
    assert not read(ours, 1)


def test_flipped_bit_is_a_miss_for_everybody_and_its_room_comes_back(tmp_path: Path, open_store: Opener) -> None:
    ours, theirs = open_store(3 * 8192), open_store(3 * 8192)
    ours.put(*block(1))
    path = Path(ours._shared.path(block(1)[0].key))
    raw = bytearray(path.read_bytes())
    raw[3000] ^= 4
    path.write_bytes(raw)
    assert not read(theirs, 1)
    assert not read(ours, 1)
    assert theirs.usage().num_corrupt == 1
    assert physical_bytes(tmp_path / 'shared') == 8192
    assert [ours.put(*block(number)) for number in (1, 2, 3)] == [PutResult.STORED] * 3
    assert physical_bytes(tmp_path / 'shared') == ours.usage().used_bytes == 3 * 8192


def test_equal_blocks_put_at_the_same_time_are_booked_once(tmp_path: Path, open_store: Opener) -> None:
    stores = [open_store(), open_store()]
    threads = [
        threading.Thread(target=lambda store=store: [store.put(*block(number)) for number in range(50)])
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stores[0].put(*block(99))
    assert stores[0].usage().num_blocks == 51
    assert stores[0].usage().used_bytes == physical_bytes(tmp_path / 'shared') == 51 * 8192


def test_files_removed_by_hand_are_misses_and_are_counted_again_by_the_next_only_owner(open_store: Opener) -> None:
    store = open_store()
    store.put(*block(1))
    os.unlink(store._shared.path(block(1)[0].key))
    assert not read(store, 1)
    assert store.usage().num_errors == 0
    store.close()
    assert open_store().usage().used_bytes == 0


def test_directory_removed_under_a_living_owner_is_a_failure_and_no_crash(tmp_path: Path, open_store: Opener) -> None:
    store = open_store()
    store.put(*block(1))
    shutil.rmtree(tmp_path / 'shared')
    assert not read(store, 1)
    assert store.put(*block(2)) is PutResult.FAILED
    assert store.usage().num_errors >= 1


def test_foreign_directory_and_foreign_format_are_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'thesis.tex').write_text('words')
    with pytest.raises(ConfigError, match='expected an empty directory or one of ours'):
        RemoteStore.open(tmp_path / 'mine', 1 << 20)
    (tmp_path / 'later').mkdir()
    (tmp_path / 'later' / 'LEDGER').write_bytes(b'kv_agent_ros/shared/99\n\0')
    with pytest.raises(ConfigError, match='delete the directory'):
        RemoteStore.open(tmp_path / 'later', 1 << 20)
    (tmp_path / 'file').write_text('')
    with pytest.raises(StoreError, match='cannot open'):
        RemoteStore.open(tmp_path / 'file' / 'store', 1 << 20)


def test_block_whose_delete_failed_is_still_known(tmp_path: Path, open_store: Opener) -> None:
    store = open_store()
    store.put(*block(1))
    path = tmp_path / 'shared' / 'blocks' / f'{block(1)[0].key.hex()}.kv'
    path.unlink()
    path.mkdir()  # which unlink() refuses
    store.delete(block(1)[0].key)
    assert store.usage().num_errors == 1
    assert store.size_bytes(block(1)[0].key) > 0
    path.rmdir()
    store.delete(block(1)[0].key)
    assert store.size_bytes(block(1)[0].key) == 0
