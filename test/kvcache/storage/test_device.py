"""Blocks as rows on a device; 'cuda' too where there is one."""

import numpy as np
import pytest
from stored_blocks import block
import torch

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.kvcache.storage.base import PutResult
from kv_agent_ros.kvcache.storage.device import DeviceStore

DEVICES = ['cpu', *(['cuda'] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def store(request: pytest.FixtureRequest) -> DeviceStore:
    return DeviceStore.create(4 * 8192, 8192, request.param)


def test_row_is_the_block_on_the_device(store: DeviceStore) -> None:
    record, value = block(1)
    store.put(record, value)
    row = store.row(record.key)
    assert row.shape == (5000,)
    assert np.array_equal(row.cpu().numpy(), value)


def test_flipped_bit_on_the_device_is_a_counted_miss_and_its_row_is_free(store: DeviceStore) -> None:
    record, value = block(1)
    store.put(record, value)
    store.row(record.key)[1234] ^= 1
    assert store.get(record.key, np.zeros(5000, dtype=np.uint8)) is None
    assert (store.usage().num_corrupt, store.usage().used_bytes) == (1, 0)
    assert store.put(record, value) is PutResult.STORED


def test_read_only_bytes_are_taken(store: DeviceStore) -> None:
    record, value = block(1)
    fixed = np.frombuffer(value.tobytes(), dtype=np.uint8)
    assert store.put(record, fixed) is PutResult.STORED
    assert np.array_equal(store.row(record.key).cpu().numpy(), value)


def test_read_blocks_are_listed_last(store: DeviceStore) -> None:
    for number in range(3):
        store.put(*block(number))
    store.get(block(0)[0].key, np.zeros(5000, dtype=np.uint8))
    assert [record.key for record in store.records()] == [block(number)[0].key for number in (1, 2, 0)]


def test_no_room_for_one_block_and_no_such_device_are_configuration_errors() -> None:
    with pytest.raises(ConfigError, match='expected room for one block'):
        DeviceStore.create(4096, 8192, 'cpu')
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="on 'cuda'"):
            DeviceStore.create(8192, 8192, 'cuda')
