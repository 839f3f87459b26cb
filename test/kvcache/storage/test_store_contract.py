"""The contract of every BlockStore."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_blocks import block

from kv_agent_ros.kvcache.storage.base import BlockStore, PutResult
from kv_agent_ros.kvcache.storage.device import DeviceStore
from kv_agent_ros.kvcache.storage.disk import DiskStore
from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore
from kv_agent_ros.kvcache.storage.host import HostStore, SharedArena
from kv_agent_ros.kvcache.storage.remote import RemoteStore

CAPACITY_BYTES = 4 * 8192
VALUE_BYTES = 7000  # four of them, and no more, in every store

OPENERS: dict[str, Callable[[Path], BlockStore]] = {
    'host': lambda path: HostStore(SharedArena.create(CAPACITY_BYTES)),
    'disk': lambda path: DiskStore.open(path / 'store', CAPACITY_BYTES),
    'guarded': lambda path: GuardedStore(DiskStore.open(path / 'store', CAPACITY_BYTES)),
    'remote': lambda path: RemoteStore.open(path / 'store', CAPACITY_BYTES),
    'device': lambda path: DeviceStore.create(CAPACITY_BYTES, 8192, 'cpu'),
    'fake': lambda path: FakeStore(CAPACITY_BYTES),
}


@pytest.fixture(params=OPENERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    opened = OPENERS[request.param](tmp_path)
    yield opened
    opened.close()


def test_get_gives_back_the_exact_bytes_and_record(store: BlockStore) -> None:
    record, value = block(7, VALUE_BYTES)
    assert store.put(record, value) is PutResult.STORED
    out = np.zeros(VALUE_BYTES, dtype=np.uint8)
    assert store.get(record.key, out) == record
    assert np.array_equal(out, value)


def test_unknown_key_is_a_miss(store: BlockStore) -> None:
    assert store.get(bytes(32), np.zeros(VALUE_BYTES, dtype=np.uint8)) is None
    assert store.size_bytes(bytes(32)) == 0


def test_buffer_that_is_too_short_is_a_miss_and_the_block_stays(store: BlockStore) -> None:
    record, value = block(1, VALUE_BYTES)
    store.put(record, value)
    assert store.get(record.key, np.zeros(VALUE_BYTES - 1, dtype=np.uint8)) is None
    assert store.get(record.key, np.zeros(VALUE_BYTES, dtype=np.uint8)) == record
    assert store.usage().num_corrupt == 0


def test_longer_buffer_is_filled_at_its_start_only(store: BlockStore) -> None:
    record, value = block(7, VALUE_BYTES)
    store.put(record, value)
    out = np.full(VALUE_BYTES + 500, 9, dtype=np.uint8)
    assert store.get(record.key, out) == record
    assert np.array_equal(out[:VALUE_BYTES], value)
    assert set(out[VALUE_BYTES:]) == {9}


def test_codec_and_bits_of_a_block_come_back_with_it(store: BlockStore) -> None:
    record, value = block(7, VALUE_BYTES)
    coded = replace(record, codec='asymmetric-4', bits=4)
    store.put(coded, value)
    assert list(store.records()) == [coded]
    assert store.get(record.key, np.zeros(VALUE_BYTES, dtype=np.uint8)) == coded


def test_deleted_block_is_a_miss_and_its_room_is_free(store: BlockStore) -> None:
    record, value = block(1, VALUE_BYTES)
    store.put(record, value)
    store.delete(record.key)
    store.delete(record.key)
    assert store.get(record.key, np.zeros(VALUE_BYTES, dtype=np.uint8)) is None
    assert store.usage().used_bytes == 0


def test_full_store_says_so_and_takes_the_block_after_a_delete(store: BlockStore) -> None:
    if isinstance(store, RemoteStore):
        pytest.skip('evicts itself')
    results = [store.put(*block(number, VALUE_BYTES)) for number in range(5)]
    assert results == [PutResult.STORED] * 4 + [PutResult.FULL]
    store.delete(block(0, VALUE_BYTES)[0].key)
    assert store.put(*block(4, VALUE_BYTES)) is PutResult.STORED
    assert store.usage().used_bytes <= store.usage().capacity_bytes


def test_block_larger_than_the_store_fails(store: BlockStore) -> None:
    assert store.put(*block(1, CAPACITY_BYTES + 1)) is PutResult.FAILED
    assert store.usage().used_bytes == 0


def test_second_put_of_a_key_changes_nothing(store: BlockStore) -> None:
    store.put(*block(1, VALUE_BYTES))
    used_bytes = store.usage().used_bytes
    assert store.put(*block(1, VALUE_BYTES)) is PutResult.STORED
    assert store.usage().used_bytes == used_bytes
    assert store.usage().num_blocks == 1


def test_bytes_without_their_checksum_are_refused_and_counted(store: BlockStore) -> None:
    record, _ = block(1, VALUE_BYTES)
    assert store.put(record, block(2, VALUE_BYTES)[1]) is PutResult.CORRUPT
    assert store.usage().num_corrupt == 1
    assert store.usage().used_bytes == 0


def test_record_of_another_length_than_the_bytes_is_refused(store: BlockStore) -> None:
    record, value = block(1, VALUE_BYTES)
    assert store.put(replace(record, length_bytes=VALUE_BYTES - 1), value) is PutResult.CORRUPT


def test_records_lists_what_is_there(store: BlockStore) -> None:
    for number in range(3):
        store.put(*block(number, VALUE_BYTES))
    assert {record.key for record in store.records()} == {block(number, VALUE_BYTES)[0].key for number in range(3)}


def test_find_counts_the_blocks_before_the_first_that_is_not_there(store: BlockStore) -> None:
    for number in (0, 1, 3):
        store.put(*block(number, VALUE_BYTES))
    keys = [block(number, VALUE_BYTES)[0].key for number in range(4)]
    assert [store.find(keys), store.find(keys[3:]), store.find(keys[2:]), store.find([])] == [2, 1, 0, 0]


def test_close_twice_is_harmless(store: BlockStore) -> None:
    store.close()
    store.close()
