"""A store whose device fails or hangs: misses at once, comes back by itself, and is measured."""

from collections.abc import Iterator
from dataclasses import replace
import os
from pathlib import Path
import threading
import time

import numpy as np
import pytest
from stored_blocks import block

from kv_agent_ros.kvcache.storage.base import BlockRecord, ByteArray, PutResult, checksum
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore, GuardLimits

LIMITS = GuardLimits(deadline_s=0.2, max_failures=3, retry_s=10.0)


class Guarded:
    """A guarded disk store, a clock that the test moves, and ways to break single files."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 0.0
        self.directory = directory
        self.disk = DiskStore.open(directory, 1 << 20)
        self.store = GuardedStore(self.disk, LIMITS, lambda: self.now_s)
        self.out = np.zeros(5000, dtype=np.uint8)
        self.pipes: list[Path] = []

    def get(self, number: int) -> bool:
        return self.store.get(block(number)[0].key, self.out) is not None

    def path(self, number: int) -> Path:
        return self.directory / f'{block(number)[0].key.hex()}.kv'

    def make_hang(self, number: int) -> None:
        """Opening a pipe that has no writer blocks, as a dead disk does."""
        self.path(number).unlink()
        os.mkfifo(self.path(number))
        self.pipes.append(self.path(number))

    def let_go(self) -> None:
        """Let what hangs return, with an error."""
        for pipe in self.pipes:
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        self.pipes = []

    def wait_until_usable(self) -> None:
        deadline_s = time.monotonic() + 30.0
        while self.store.usage().is_degraded and time.monotonic() < deadline_s:
            self.now_s += 1.0
        assert not self.store.usage().is_degraded


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    opened = Guarded(tmp_path / 'store')
    for number in range(1, 6):
        assert opened.store.put(*block(number)) is PutResult.STORED
    yield opened
    opened.let_go()
    opened.store.close()


def test_hanging_read_is_a_miss_in_time_and_the_next_one_at_once(guarded: Guarded) -> None:
    guarded.make_hang(1)
    start_s = time.monotonic()
    assert not guarded.get(1)
    assert time.monotonic() - start_s < 5.0
    assert guarded.store.usage().is_degraded
    before_s = time.thread_time()
    assert not guarded.get(2)
    assert guarded.store.put(*block(9)) is PutResult.FAILED
    assert list(guarded.store.records()) == []
    assert time.thread_time() - before_s < 0.1
    assert guarded.store.usage().num_errors == 2  # the listing is not complete


def test_store_that_still_hangs_is_not_asked_again(guarded: Guarded) -> None:
    guarded.make_hang(1)
    guarded.get(1)
    num_threads = threading.active_count()
    for _ in range(20):
        guarded.now_s += 100.0
        assert not guarded.get(2)
    assert guarded.store.usage().is_degraded
    assert threading.active_count() == num_threads


def test_store_that_came_back_is_used_again_after_a_trial(guarded: Guarded) -> None:
    guarded.make_hang(1)
    guarded.get(1)
    guarded.let_go()
    guarded.wait_until_usable()
    assert guarded.get(2)
    assert np.array_equal(guarded.out, block(2)[1])
    assert guarded.store.put(*block(9)) is PutResult.STORED


def test_abandoned_read_never_writes_to_its_callers_memory(guarded: Guarded) -> None:
    path = guarded.path(1)
    content = path.read_bytes()
    guarded.make_hang(1)
    out = np.full(5000, 7, dtype=np.uint8)
    assert guarded.store.get(block(1)[0].key, out) is None
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    path.unlink()
    path.write_bytes(content)
    os.close(pipe)
    guarded.pipes = []
    guarded.wait_until_usable()
    assert guarded.get(1)
    assert set(out) == {7}


def test_failures_in_a_row_degrade_and_one_success_between_them_does_not(guarded: Guarded) -> None:
    for number in (1, 2, 4, 5):
        guarded.path(number).unlink()
    assert not guarded.get(1)
    assert not guarded.get(2)
    assert guarded.get(3)
    assert not guarded.get(4)
    assert not guarded.get(5)
    assert not guarded.store.usage().is_degraded


def test_failing_store_is_tried_once_per_interval(guarded: Guarded) -> None:
    for number in (1, 2, 4, 5):
        guarded.path(number).unlink()
    for number in (1, 2, 4):
        guarded.get(number)
    assert guarded.store.usage().is_degraded
    guarded.now_s = 9.0
    assert not guarded.get(3)
    guarded.now_s = 10.0
    assert not guarded.get(5)
    assert guarded.store.usage().num_errors == 4
    assert not guarded.get(3)
    guarded.now_s = 20.0
    assert guarded.get(3)
    assert not guarded.store.usage().is_degraded


def test_delete_while_degraded_is_done_later(guarded: Guarded) -> None:
    guarded.make_hang(1)
    guarded.get(1)
    guarded.store.delete(block(2)[0].key)
    assert guarded.path(2).exists()
    guarded.let_go()
    guarded.wait_until_usable()
    assert guarded.get(3)
    assert not guarded.path(2).exists()
    assert not guarded.get(2)


def test_block_whose_delete_failed_is_deleted_before_its_key_is_used_again() -> None:
    device = FakeStore(1 << 20)
    store = GuardedStore(device, LIMITS)
    record, value = block(1)
    other = value[::-1].copy()
    out = np.zeros_like(value)
    store.put(record, value)
    device.is_failing = True
    store.delete(record.key)
    assert store.put(record, value) is PutResult.FAILED
    device.is_failing = False
    assert store.put(replace(record, checksum=checksum(other)), other) is PutResult.STORED
    assert store.get(record.key, out) is not None
    assert np.array_equal(out, other)


def test_block_that_cannot_be_deleted_is_neither_served_nor_found_nor_put_again() -> None:
    device = UndeletableStore(1 << 20)
    store = GuardedStore(device, LIMITS)
    record, value = block(1)
    store.put(record, value)
    store.put(*block(2))
    store.delete(record.key)
    assert store.get(record.key, np.zeros_like(value)) is None
    assert store.find([block(2)[0].key, record.key]) == 1
    assert store.put(record, value) is PutResult.FAILED
    assert record.key in device.blocks


class UndeletableStore(FakeStore):
    """Keeps what it has, and says nothing."""

    def delete(self, key: bytes) -> None:
        """Nothing happens."""


def test_put_that_ends_after_its_deadline_leaves_nothing_behind() -> None:
    device = FakeStore(1 << 20)
    now_s = 0.0
    store = GuardedStore(device, LIMITS, lambda: now_s)
    device.works.clear()
    assert store.put(*block(1)) is PutResult.FAILED
    device.works.set()
    deadline_s = time.monotonic() + 30.0
    while store.usage().is_degraded and time.monotonic() < deadline_s:
        now_s += 1.0
    assert store.put(*block(2)) is PutResult.STORED
    assert list(device.blocks) == [block(2)[0].key]


def test_too_large_block_and_full_store_are_no_failures(guarded: Guarded) -> None:
    for _ in range(5):
        assert guarded.store.put(*block(9, 2 << 20)) is PutResult.FAILED
    assert not guarded.store.usage().is_degraded


def test_bandwidth_is_that_of_blocks_that_moved(guarded: Guarded) -> None:
    assert guarded.store.usage().read_bytes_per_s == 0.0
    for number in (1, 2, 3, 99):
        guarded.get(number)
    guarded.store.put(*block(1))
    usage = guarded.store.usage()
    assert (usage.read_bytes, usage.written_bytes) == (15000, 25000)
    assert usage.read_bytes_per_s == pytest.approx(5000 / usage.read_latency_s)
    assert usage.write_bytes_per_s == pytest.approx(5000 / usage.write_latency_s)


def run(guarded: Guarded, numbers: tuple[int, ...], room_bytes: int = 100_000) -> list[int]:
    """The numbers of the blocks that came, whose bytes must be theirs."""
    found = guarded.store.get_run([block(number)[0].key for number in numbers], room_bytes)
    here = numbers[: len(found.records)]
    assert list(found.records) == [block(number)[0] for number in here]
    assert found.stored.tobytes() == b''.join(block(number)[1].tobytes() for number in here)
    return list(here)


def test_a_run_ends_at_the_first_block_that_misses_or_does_not_fit(guarded: Guarded) -> None:
    assert run(guarded, (3, 1, 2)) == [3, 1, 2]
    assert run(guarded, (1, 99, 2)) == [1]
    assert run(guarded, (99, 1)) == []
    assert run(guarded, (1, 2, 3), 10_000) == [1, 2]
    assert run(guarded, (1,), 4_999) == []


def test_a_run_is_measured_block_by_block(guarded: Guarded) -> None:
    run(guarded, (1, 2, 3, 4))
    usage = guarded.store.usage()
    assert usage.read_bytes == 20_000
    assert usage.read_bytes_per_s == pytest.approx(5000 / usage.read_latency_s)


def test_a_run_over_a_hanging_block_is_a_miss_in_time_and_is_not_handed_out_later(guarded: Guarded) -> None:
    guarded.make_hang(2)
    start_s = time.monotonic()
    assert run(guarded, (1, 2, 3)) == []
    assert time.monotonic() - start_s < 5.0
    assert run(guarded, (1,)) == []
    guarded.let_go()
    guarded.wait_until_usable()
    assert run(guarded, (1, 3)) == [1, 3]


class SlowStore(FakeStore):
    """Every block takes a while, by the clock of the test."""

    now_s = 0.0

    def get(self, key: bytes, out: ByteArray) -> BlockRecord | None:
        self.now_s += 0.08
        return super().get(key, out)


def test_a_run_from_a_slow_device_ends_before_its_deadline_with_what_came() -> None:
    device = SlowStore(1 << 20)
    store = GuardedStore(device, LIMITS, lambda: device.now_s)
    for number in range(1, 6):
        store.put(*block(number))
    keys = [block(number)[0].key for number in range(1, 6)]
    found = store.get_run(keys, 1 << 20)
    assert list(found.records) == [block(1)[0], block(2)[0]]  # the next one might take as long again
    assert list(store.get_run(keys[2:], 1 << 20).records) == [block(3)[0], block(4)[0]]


def test_a_run_stops_at_a_damaged_block(guarded: Guarded) -> None:
    damaged = bytearray(guarded.path(2).read_bytes())
    damaged[-1] ^= 1
    guarded.path(2).write_bytes(damaged)
    assert run(guarded, (1, 2, 3)) == [1]
    assert guarded.store.usage().num_corrupt == 1


def test_a_run_stops_at_a_block_that_is_to_be_deleted() -> None:
    device = UndeletableStore(1 << 20)
    store = GuardedStore(device, LIMITS)
    for number in (1, 2, 3):
        store.put(*block(number))
    store.delete(block(2)[0].key)
    found = store.get_run([block(number)[0].key for number in (1, 2, 3)], 1 << 20)
    assert list(found.records) == [block(1)[0]]


def test_close_of_a_hanging_store_returns(guarded: Guarded) -> None:
    guarded.make_hang(1)
    guarded.get(1)
    guarded.store.close()
