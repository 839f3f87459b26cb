"""Pages of an engine in our stores: the same page back, anything else a miss."""

from dataclasses import replace
import hashlib
import math
from pathlib import Path
import time

import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError, ConfigError
from kv_agent_ros.inference.page_store import PageKey, PageLines, PageStore, model_revision, opaque_layout
from kv_agent_ros.kvcache.block import BlockLayout, KVNamespace
from kv_agent_ros.kvcache.storage.base import ByteArray, checksum
from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.guarded import GuardedStore, GuardLimits
from kv_agent_ros.kvcache.storage.remote import RemoteStore

NAMESPACE = KVNamespace(
    model='smol',
    revision='r1',
    dtype='float32',
    num_layers=2,
    num_kv_heads=3,
    head_dim=64,
    block_tokens=16,
    bits=4,
    variant='tp0/1',
    tenant='home',
)
LAYOUT = NAMESPACE.layout
ROOM_BYTES = 8 << 20


def opened(directory: Path, namespace: KVNamespace = NAMESPACE, capacity_bytes: int = ROOM_BYTES) -> PageStore:
    return PageStore(GuardedStore(RemoteStore.open(directory, capacity_bytes)), namespace.digest)


def hashes(number: int, name: str = 'a') -> list[str]:
    return [hashlib.sha256(f'{name}{index}'.encode()).hexdigest() for index in range(number)]


def page(seed: int, layout: BlockLayout = LAYOUT) -> ByteArray:
    values = np.random.default_rng(seed).standard_normal(layout.shape).astype(layout.dtype)
    return values.reshape(-1).view(np.uint8)


def read(store: PageStore, place: PageKey, layout: BlockLayout = LAYOUT) -> ByteArray | None:
    found: list[ByteArray] = []
    store.read([place], layout, lambda number, block: found.append(block.copy()))
    return found[0] if found else None


def relative_error(found: ByteArray, expected: ByteArray) -> float:
    found, expected = found.view(np.float32), expected.view(np.float32)
    return float(np.square(found - expected).sum() / np.square(expected).sum())


def damage(directory: Path, place: PageKey) -> None:
    """Turn one bit of a stored page."""
    path = directory / 'blocks' / f'{place.key.hex()}.kv'
    damaged = bytearray(path.read_bytes())
    damaged[-7] ^= 1
    path.write_bytes(damaged)


def fill(store: PageStore, number: int, name: str = 'a') -> None:
    for index, place in enumerate(store.keys([], hashes(number, name))):
        assert store.put(place, page(index), LAYOUT)


def test_pages_come_back_after_a_restart_in_a_fifth_of_their_bytes(tmp_path: Path) -> None:
    first = opened(tmp_path)
    fill(first, 9)
    first.close()
    again = opened(tmp_path)
    places = again.keys([], hashes(9))
    assert again.find(places) == 9
    for index, place in enumerate(places):
        found = read(again, place)
        assert found is not None
        assert relative_error(found, page(index)) < 0.02
    stored = sorted(path.stat().st_size for path in (tmp_path / 'blocks').iterdir())
    assert stored[-1] < 0.25 * LAYOUT.num_bytes  # these pages are small: a file has some hundred bytes more
    assert (again.stats().num_read, again.stats().num_missed) == (9, 0)


@pytest.mark.parametrize(
    ('bits', 'dtype', 'limit'),
    [(2, 'float32', 0.2), (8, 'float32', 1e-3), (16, 'float32', 1e-6), (16, 'float16', 0.0), (32, 'float32', 0.0)],
)
def test_each_precision_keeps_what_it_promises(tmp_path: Path, bits: int, dtype: str, limit: float) -> None:
    namespace = replace(NAMESPACE, bits=bits, dtype=dtype)
    store = opened(tmp_path, namespace)
    place = store.keys(hashes(1, 'head'), hashes(1))[0]
    sent = page(1, namespace.layout)
    assert store.put(place, sent, namespace.layout)
    found = read(store, place, namespace.layout)
    assert found is not None
    difference = found.view(dtype).astype(np.float64) - sent.view(dtype)
    assert np.square(difference).mean() <= limit


@pytest.mark.parametrize(
    'change',
    [
        {'model': 'other'},
        {'revision': 'r2'},
        {'dtype': 'float16'},
        {'num_layers': 3},
        {'num_kv_heads': 6},
        {'head_dim': 32},
        {'block_tokens': 32},
        {'bits': 16},
        {'variant': 'tp1/2'},
        {'tenant': 'neighbour'},
    ],
    ids=str,
)
def test_whatever_differs_in_the_namespace_is_a_miss(tmp_path: Path, change: dict[str, object]) -> None:
    fill(opened(tmp_path), 2)
    other = opened(tmp_path, replace(NAMESPACE, **change))
    places = other.keys([], hashes(2))
    assert other.find(places) == 0
    assert read(other, places[0]) is None


def test_the_same_page_after_another_prefix_is_another_page(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 2)
    assert store.find(store.keys(hashes(1, 'b'), hashes(2)[1:])) == 0
    assert store.find(store.keys(hashes(1), hashes(2)[1:])) == 1


def test_two_engines_share_what_one_of_them_wrote(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    fill(one, 3)
    assert other.find(other.keys([], hashes(3))) == 3


def test_a_damaged_page_is_a_miss_and_is_written_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 3)
    place = store.keys([], hashes(3))[1]
    damage(tmp_path, place)
    again = opened(tmp_path)
    assert read(again, place) is None
    assert again.find(again.keys([], hashes(3))) == 1
    assert again.put(place, page(1), LAYOUT)
    assert again.find(again.keys([], hashes(3))) == 3


@pytest.mark.parametrize('bits', [4, 16])
def test_more_pages_than_are_read_at_once_come_back_in_their_order(tmp_path: Path, bits: int) -> None:
    layout = BlockLayout(shape=(2, 30, 3, 16, 64), dtype='float32', bits=bits)
    store = opened(tmp_path, capacity_bytes=64 << 20)
    places = store.keys([], hashes(50 if bits == 4 else 14))
    for index, place in enumerate(places):
        assert store.put(place, page(index, layout), layout)
    found: list[float] = []
    taken = store.read(places, layout, lambda number, block: found.append(relative_error(block, page(number, layout))))
    assert taken == len(places)
    assert max(found) < (0.02 if bits == 4 else 1e-6)


def lines(num_pages: int, layout: BlockLayout = LAYOUT) -> PageLines:
    """An engine's memory with room for one page more, in which pages lie from the last to the first."""
    num_lines = math.prod(layout.shape[:4])
    memory = np.zeros(((num_pages + 1) * num_lines, layout.shape[4]), layout.dtype)
    starts = np.arange(num_pages, 0, -1) * num_lines
    return PageLines(memory=memory, pattern=np.arange(num_lines).reshape(2, -1), starts=starts)


@pytest.mark.parametrize('bits', [2, 4, 8, 16, 32])
def test_pages_written_straight_to_their_lines_are_the_pages_handed_over(tmp_path: Path, bits: int) -> None:
    layout = replace(LAYOUT, bits=bits)
    store = opened(tmp_path, replace(NAMESPACE, bits=bits))
    places = store.keys([], hashes(6))
    for index, place in enumerate(places):
        assert store.put(place, page(index, layout), layout)
    out = lines(6, layout)
    assert store.read_lines(places, layout, out) == 6
    for place, start in zip(places, out.starts, strict=True):
        expected = read(store, place, layout)
        assert expected is not None
        assert out.memory[start : start + len(out.memory) // 7].tobytes() == expected.tobytes()
    assert not out.memory[: len(out.memory) // 7].any()


@pytest.mark.parametrize('bits', [4, 16])
def test_nothing_of_a_damaged_page_or_of_those_after_it_is_written_to_lines(tmp_path: Path, bits: int) -> None:
    layout = replace(LAYOUT, bits=bits)
    store = opened(tmp_path, replace(NAMESPACE, bits=bits))
    places = store.keys([], hashes(5))
    for index, place in enumerate(places):
        assert store.put(place, page(index + 1, layout), layout)
    damage(tmp_path, places[3])
    out = lines(5, layout)
    assert store.read_lines(places, layout, out) == 3
    written = [bool(out.memory[start : start + len(out.memory) // 6].any()) for start in out.starts]
    assert written == [True, True, True, False, False]


def test_pages_of_another_length_than_expected_are_misses_and_are_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 4)
    places = store.keys([], hashes(4))
    other = replace(LAYOUT, shape=(2, 3, 3, 16, 64))
    assert store.read_lines(places[1:], other, lines(3, other)) == 0
    assert store.find(places) == 1


def test_pages_before_a_damaged_one_are_handed_over_and_none_after_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 5)
    places = store.keys([], hashes(5))
    damage(tmp_path, places[3])
    taken: list[int] = []
    assert store.read(places, LAYOUT, lambda number, block: taken.append(number)) == 3
    assert taken == [0, 1, 2]
    assert (store.stats().num_read, store.stats().num_missed) == (3, 1)


def test_a_device_that_hangs_is_a_miss_in_time_and_is_back_by_itself() -> None:
    device, seconds = FakeStore(ROOM_BYTES), [0.0]
    limits = GuardLimits(deadline_s=0.2, retry_s=1.0)
    store = PageStore(GuardedStore(device, limits, lambda: seconds[0]), NAMESPACE.digest)
    fill(store, 3)
    places = store.keys([], hashes(3))
    device.works.clear()
    begun_s = time.monotonic()
    assert store.read(places, LAYOUT, lambda number, block: None) == 0
    assert not store.put(store.keys([], hashes(1, 'b'))[0], page(1), LAYOUT)
    assert store.find(places) == 0
    assert time.monotonic() - begun_s < 10.0
    device.works.set()
    begun_s = time.monotonic()
    while store.read(places, LAYOUT, lambda number, block: None) < 3 and time.monotonic() - begun_s < 30.0:
        seconds[0] += 1.0
    assert store.read(places, LAYOUT, lambda number, block: None) == 3


def test_a_page_of_another_size_than_asked_for_is_a_miss(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 2)
    other = replace(LAYOUT, shape=(2, 3, 3, 16, 64))
    assert read(store, store.keys([], hashes(2))[1], other) is None


def test_a_page_with_infinities_is_kept_as_it_is(tmp_path: Path) -> None:
    store = opened(tmp_path)
    sent = page(1)
    sent.view(np.float32)[5] = np.inf
    place = store.keys(hashes(1), hashes(1, 'b'))[0]
    assert store.put(place, sent, LAYOUT)
    assert np.array_equal(read(store, place), sent)


def test_a_full_store_drops_the_tails_and_keeps_its_room(tmp_path: Path) -> None:
    store = opened(tmp_path, capacity_bytes=256 << 10)
    for name in 'abcdefgh':
        fill(store, 6, name)
        used = sum(path.stat().st_blocks * 512 for path in (tmp_path / 'blocks').iterdir())
        assert used <= 256 << 10
    found = {name: store.find(store.keys([], hashes(6, name))) for name in 'abcdefgh'}
    num_files = len(list((tmp_path / 'blocks').iterdir()))
    assert sum(found.values()) == num_files  # no page without its prefix
    assert found['h'] == 6


def test_a_store_whose_directory_is_gone_misses_and_refuses(tmp_path: Path) -> None:
    store = opened(tmp_path / 'l3')
    fill(store, 1)
    (tmp_path / 'l3' / 'blocks').rename(tmp_path / 'away')
    place = store.keys([], hashes(1, 'b'))[0]
    assert not store.put(place, page(1), LAYOUT)
    assert read(store, place) is None
    assert (store.stats().num_refused, store.stats().num_missed) == (1, 1)


def test_clear_deletes_this_namespace_alone(tmp_path: Path) -> None:
    store, other = opened(tmp_path), opened(tmp_path, replace(NAMESPACE, tenant='neighbour'))
    fill(store, 3)
    fill(other, 2)
    assert store.clear() == 3
    assert store.find(store.keys([], hashes(3))) == 0
    assert other.find(other.keys([], hashes(2))) == 2


def test_bytes_that_no_codec_knows_come_back_exactly(tmp_path: Path) -> None:
    store = opened(tmp_path)
    layout = opaque_layout(1000)
    sent = np.arange(1000).astype(np.uint8)
    place = store.keys([], hashes(1))[0]
    assert store.put(place, sent, layout)
    assert np.array_equal(read(store, place, layout), sent)


@pytest.mark.parametrize('layout', [LAYOUT, replace(LAYOUT, bits=16), opaque_layout(1000)], ids=str)
def test_every_kind_of_page_can_be_warmed_up(tmp_path: Path, layout: BlockLayout) -> None:
    store = opened(tmp_path)
    store.warm_up(layout)
    assert (store.stats().num_read, store.stats().num_written) == (0, 0)


def test_models_with_one_name_and_other_weights_have_other_revisions(tmp_path: Path) -> None:
    (tmp_path / 'config.json').write_text('{}')
    (tmp_path / 'model.safetensors').write_bytes(bytes(1000))
    first = model_revision(tmp_path)
    assert model_revision(tmp_path) == first
    (tmp_path / 'model.safetensors').write_bytes(bytes(999) + b'1')
    assert model_revision(tmp_path) != first
    with pytest.raises(ConfigError, match='expected a Hugging Face model'):
        model_revision(tmp_path / 'config.json')


@pytest.mark.parametrize(
    'codec', ['raw', 'float16', 'plain-8', 'keys-8', 'mixed-4', 'channel-4', 'rotated-4', 'rotated-2', 'x']
)
@pytest.mark.parametrize('num_bytes', [0, 1, 17])
def test_stored_bytes_that_are_no_page_are_a_miss_and_make_room_for_one(codec: str, num_bytes: int) -> None:
    device = FakeStore(ROOM_BYTES)
    store = PageStore(GuardedStore(device), NAMESPACE.digest)
    places = store.keys([], hashes(3))
    for index, place in enumerate(places):
        assert store.put(place, page(index), LAYOUT)
    record, _ = device.blocks[places[1].key]
    foreign = np.zeros(num_bytes, np.uint8)
    foreign_record = replace(record, length_bytes=num_bytes, checksum=checksum(foreign), codec=codec)
    device.blocks[record.key] = foreign_record, foreign
    memory = np.zeros((3 * LAYOUT.num_bytes // 256, 64), np.float32)
    lines = PageLines(
        memory=memory,
        pattern=np.arange(len(memory) // 3).reshape(2, -1),
        starts=np.arange(3) * (len(memory) // 3),
    )
    assert store.read_lines(places, LAYOUT, lines) == 1
    assert not memory[len(memory) // 3 :].any()
    assert store.find(places) == 1
    assert store.put(places[1], page(1), LAYOUT)
    assert store.read_lines(places, LAYOUT, lines) == 3


@pytest.mark.parametrize('starts', [[0, -1], [0, 1], [0, 1 << 40], [0]])
def test_pages_are_never_written_beside_the_memory_that_they_are_wanted_in(tmp_path: Path, starts: list[int]) -> None:
    store = opened(tmp_path)
    fill(store, 2)
    memory = np.zeros((LAYOUT.num_bytes // 256, 64), np.float32)
    lines = PageLines(
        memory=memory, pattern=np.arange(len(memory)).reshape(2, -1), starts=np.array(starts, dtype=np.int64)
    )
    with pytest.raises(BadRequestError, match='lines'):
        store.read_lines(store.keys([], hashes(2)), LAYOUT, lines)
    assert not memory.any()
