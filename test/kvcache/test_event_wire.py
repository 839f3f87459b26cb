"""Events in the engines' form: written in today's dialect, read in both."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st
import msgspec
import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.kvcache.block import EventKind, KVEvent, SessionKey, Tier
from kv_agent_ros.kvcache.event_wire import (
    AllCleared,
    BlocksRemoved,
    BlocksStored,
    EventBatch,
    WireEvent,
    decode_batch,
    encode_batch,
    to_wire,
    wire_hash,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
TOKEN = st.integers(0, 2**31 - 1)


@st.composite
def stored(draw: st.DrawFn) -> BlocksStored:
    hashes = tuple(draw(st.lists(INT64, min_size=1, max_size=3)))
    size = draw(st.integers(1, 4))
    tokens = tuple(draw(st.lists(TOKEN, min_size=size * len(hashes), max_size=size * len(hashes))))
    return BlocksStored(
        block_hashes=hashes,
        token_ids=tokens,
        block_tokens=size,
        parent_hash=draw(INT64),
        tier=draw(st.sampled_from(Tier)),
        session_id=draw(st.text(max_size=5)),
    )


REMOVED = st.builds(BlocksRemoved, block_hashes=st.lists(INT64, max_size=3).map(tuple), tier=st.sampled_from(Tier))
EVENTS = st.one_of(stored(), REMOVED, st.just(AllCleared()))


@given(st.lists(EVENTS, max_size=4).map(tuple), st.floats(0, 2e9), st.integers(0, 7))
def test_what_is_written_is_read_again(events: tuple[WireEvent, ...], at_s: float, rank: int) -> None:
    batch = EventBatch(at_s=at_s, events=events, rank=rank)
    assert decode_batch(encode_batch(batch)) == batch


def test_a_stored_block_is_a_map_with_the_field_names_of_sglang_and_vllm() -> None:
    event = KVEvent(
        sequence=1,
        kind=EventKind.STORED,
        block_keys=(bytes(7) + b'\x05' + bytes(24), bytes(7) + b'\x06' + bytes(24)),
        tier=Tier.SSD,
        session=SessionKey(robot_id='r1', session_id='s1'),
        parent_key=bytes(7) + b'\x04' + bytes(24),
        tokens=bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]),
    )
    payload = encode_batch(EventBatch(at_s=1.5, events=(to_wire(event),)))
    expected = {
        'type': 'BlockStored',
        'block_hashes': [5, 6],
        'parent_block_hash': 4,
        'token_ids': [1, 2, 3, 4],
        'block_size': 2,
        'lora_id': None,
        'medium': 'DISK',
        'session_id': 's1',
    }
    assert msgspec.msgpack.decode(payload) == [1.5, [expected], 0]


def test_the_older_dialect_of_positional_arrays_is_read_too() -> None:
    payload = msgspec.msgpack.encode(
        [
            2.0,
            [
                ['BlockStored', [7, 8], None, [1, 2, 3, 4], 2, None, 'GPU', None],
                ['BlockStored', [9], 8, [5, 6], 2, None],
                ['BlockRemoved', [7], 'CPU'],
                ['AllBlocksCleared'],
            ],
        ]
    )
    assert decode_batch(payload).events == (
        BlocksStored(block_hashes=(7, 8), token_ids=(1, 2, 3, 4), block_tokens=2),
        BlocksStored(block_hashes=(9,), token_ids=(5, 6), block_tokens=2, parent_hash=8),
        BlocksRemoved(block_hashes=(7,), tier=Tier.DRAM),
        AllCleared(),
    )


def test_hashes_that_are_sent_as_bytes_become_numbers() -> None:
    payload = msgspec.msgpack.encode([0.0, [{'type': 'BlockRemoved', 'block_hashes': [b'\x01\x02']}], None])
    assert decode_batch(payload).events == (BlocksRemoved(block_hashes=(258,), tier=Tier.HBM),)


def test_unknown_events_and_fields_are_skipped() -> None:
    events = [{'type': 'Weather', 'rain': 1}, ['Other', 3], {'type': 'AllBlocksCleared', 'why': 'reset'}]
    assert decode_batch(msgspec.msgpack.encode([0.0, events, 0])).events == (AllCleared(),)


@pytest.mark.parametrize(
    'value',
    [
        7,
        [],
        [0.0],
        ['now', []],
        [0.0, {}],
        [0.0, [3]],
        [0.0, [[]]],
        [0.0, [{'type': 'BlockStored'}]],
        [0.0, [{'type': 'BlockStored', 'block_hashes': [1], 'block_size': 0, 'token_ids': []}]],
        [0.0, [{'type': 'BlockStored', 'block_hashes': [1], 'block_size': 2, 'token_ids': [1]}]],
        [0.0, [{'type': 'BlockStored', 'block_hashes': ['x'], 'block_size': 1, 'token_ids': [1]}]],
        [0.0, [{'type': 'BlockRemoved', 'block_hashes': [True]}]],
        [0.0, [], 'zero'],
        [float('nan'), []],
        [float('inf'), []],
        [0.0, [{'type': 'BlockStored', 'block_hashes': [1], 'block_size': 1, 'token_ids': [1 << 31]}]],
        [0.0, [{'type': 'BlockStored', 'block_hashes': [1], 'block_size': 1, 'token_ids': [(1 << 64) - 1]}]],
    ],
)
def test_a_malformed_batch_is_refused(value: object) -> None:
    with pytest.raises(BadRequestError, match='expected'):
        decode_batch(msgspec.msgpack.encode(value))


@given(st.binary(max_size=40))
def test_no_bytes_make_the_reader_fail_otherwise(payload: bytes) -> None:
    with contextlib.suppress(BadRequestError):
        decode_batch(payload)


def test_a_batch_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(BadRequestError, match='expected'):
        decode_batch(b'\x91' * 100_000 + b'\x00')


def test_a_hash_on_the_wire_is_the_start_of_the_key_as_a_signed_number() -> None:
    assert wire_hash(b'\xff' * 32) == -1


@pytest.mark.parametrize(
    ('first_keys', 'lora_name', 'parent', 'salt'),
    [
        (['home'], None, None, 'home'),
        (['arm', 'home'], 'arm', None, 'home'),
        (['arm'], 'arm', None, ''),
        ([['image', 3], 'home', b'x'], None, None, 'home'),
        (None, None, None, ''),
        (['arm'], None, 7, ''),
    ],
)
def test_the_salt_of_a_prefix_is_found_among_the_extra_keys_of_vllm(
    first_keys: list[object] | None, lora_name: str | None, parent: int | None, salt: str
) -> None:
    stored_event = {
        'type': 'BlockStored',
        'block_hashes': [1, 2],
        'parent_block_hash': parent,
        'token_ids': [5, 6],
        'block_size': 1,
        'medium': 'GPU',
        'lora_name': lora_name,
        'extra_keys': [first_keys, None],
    }
    (event,) = decode_batch(msgspec.msgpack.encode([1.0, [stored_event], 0])).events
    assert isinstance(event, BlocksStored)
    assert event.cache_salt == salt
