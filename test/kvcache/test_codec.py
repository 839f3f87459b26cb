"""Whole blocks through every codec, and which codec a block gets."""

from dataclasses import replace
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.kvcache.arithmetic import Lines, NumpyArithmetic
from kv_agent_ros.kvcache.block import BlockLayout
from kv_agent_ros.kvcache.codec import CODECS, BlockCodec, BlockLines, QuantizedCodec, codec_named
from kv_agent_ros.kvcache.codec_policy import CodecPolicy, codec_for
from kv_agent_ros.kvcache.quantization import RotatedQuantizer
from kv_agent_ros.kvcache.storage.base import checksum

LAYOUT = BlockLayout(shape=(2, 2, 3, 16, 64), dtype='float32', bits=4)
QUANTIZED = [codec for codec in CODECS if isinstance(codec, QuantizedCodec)]
WORST_ERROR = {'raw': 0.0, 'float16': 1e-6, 'plain-8': 1e-4, 'rotated-2': 0.13, 'keys-8': 0.012}
WORST_ERROR |= {'mixed-4': 0.012, 'channel-4': 0.012, 'rotated-4': 0.012}
BITS = (2, 4, 8, 16)


def block(layout: BlockLayout, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(layout.shape)
    values[0, ..., 5] += 10
    return values.astype(layout.dtype).reshape(-1).view(np.uint8)


def round_trip(codec: BlockCodec, layout: BlockLayout, raw: np.ndarray) -> np.ndarray:
    out = np.zeros(layout.num_bytes, np.uint8)
    codec.decode(codec.encode(raw, layout), layout, out)
    return out


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('block_tokens', [1, 5, 16, 256])
@pytest.mark.parametrize('codec', CODECS, ids=lambda codec: codec.name)
def test_a_block_comes_back_as_close_as_its_codec_promises(codec: BlockCodec, block_tokens: int, dtype: str):
    layout = replace(LAYOUT, shape=(2, 2, 3, block_tokens, 64), dtype=dtype)
    raw = block(layout)

    found, expected = (a.view(dtype).astype(np.float64) for a in (round_trip(codec, layout, raw), raw))

    assert np.square(found - expected).sum() <= WORST_ERROR[codec.name] * np.square(expected).sum()


@pytest.mark.parametrize('codec', QUANTIZED, ids=lambda codec: codec.name)
def test_the_stored_size_is_the_computed_one_and_every_byte_of_it_counts(codec: QuantizedCodec):
    """Scales are within the bytes, so within the checksum and every copy; a lost byte is refused, not guessed."""
    stored = codec.encode(block(LAYOUT), LAYOUT)

    assert len(stored) == codec.num_bytes(LAYOUT)
    damaged = stored.copy()
    damaged[0] ^= 1
    assert checksum(damaged) != checksum(stored)
    for wrong in (stored[:-1], np.append(stored, np.uint8(0))):
        with pytest.raises(StoreError, match='expected'):
            codec.decode(wrong, LAYOUT, np.zeros(LAYOUT.num_bytes, np.uint8))


@pytest.mark.parametrize('codec', CODECS, ids=lambda codec: codec.name)
def test_a_block_of_another_layout_is_refused(codec: BlockCodec):
    with pytest.raises(StoreError, match='expected'):
        codec.encode(block(LAYOUT)[:-4], LAYOUT)


@pytest.mark.parametrize('bad', [np.nan, np.inf])
@pytest.mark.parametrize('codec', CODECS[1:], ids=lambda codec: codec.name)
def test_nan_and_infinity_are_refused_in_keys_and_in_values(codec: BlockCodec, bad: float):
    for half in (0, 1):
        raw = block(LAYOUT)
        raw.view(np.float32).reshape(LAYOUT.shape)[half, 1, 2, 3, 4] = bad
        with pytest.raises(StoreError, match='finite'):
            codec.encode(raw, LAYOUT)


@pytest.mark.parametrize('dtype', ['int8', 'uint8', 'complex64', 'S3'])
@pytest.mark.parametrize('codec', CODECS[1:], ids=lambda codec: codec.name)
def test_elements_that_are_no_floats_are_kept_as_they_are(codec: BlockCodec, dtype: str):
    layout = replace(LAYOUT, dtype=dtype)
    stored = codec.encode(block(LAYOUT), LAYOUT)
    assert codec_for(layout).name == 'raw'
    with pytest.raises(StoreError, match='expected floats'):
        codec.encode(np.zeros(layout.num_bytes, np.uint8), layout)
    with pytest.raises(StoreError, match='expected floats'):
        codec.decode(stored, layout, np.zeros(layout.num_bytes, np.uint8))


@pytest.mark.parametrize('codec', CODECS, ids=lambda codec: codec.name)
def test_a_block_is_decoded_into_any_bytes_of_a_segment(codec: BlockCodec):
    raw = block(LAYOUT)
    segment = np.zeros(LAYOUT.num_bytes + 8, np.uint8)

    codec.decode(codec.encode(raw, LAYOUT), LAYOUT, segment[1 : 1 + LAYOUT.num_bytes])

    assert segment[1 : 1 + LAYOUT.num_bytes].tobytes() == round_trip(codec, LAYOUT, raw).tobytes()
    assert segment[0] == 0
    assert segment[1 + LAYOUT.num_bytes :].tolist() == [0] * 7


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('codec', CODECS, ids=lambda codec: codec.name)
def test_blocks_decoded_together_to_anywhere_are_the_blocks_decoded_one_by_one(codec: BlockCodec, dtype: str):
    layout = replace(LAYOUT, dtype=dtype)
    raws = [block(layout, seed) for seed in range(3)]
    stored = np.stack([codec.encode(raw, layout) for raw in raws])
    num_vectors = math.prod(layout.shape[1:4])
    memory = np.zeros((2 * 3 * num_vectors + 5, layout.shape[4]), dtype)
    places = np.random.default_rng(1).permutation(len(memory))[: 2 * 3 * num_vectors]
    keys, values = places[: 3 * num_vectors], places[3 * num_vectors :]

    lines = BlockLines(keys=Lines(memory=memory, places=keys), values=Lines(memory=memory, places=values))
    codec.decode_all(stored, layout, lines)

    expected = np.stack([round_trip(codec, layout, raw).view(dtype).reshape(2, num_vectors, -1) for raw in raws])
    assert np.array_equal(memory[keys], expected[:, 0].reshape(3 * num_vectors, -1))
    assert np.array_equal(memory[values], expected[:, 1].reshape(3 * num_vectors, -1))
    assert not np.delete(memory, places, 0).any()
    with pytest.raises(StoreError, match='expected'):
        codec.decode_all(stored[:, :-1].copy(), layout, lines)


@pytest.mark.parametrize('codec', QUANTIZED, ids=lambda codec: codec.name)
def test_a_float16_block_at_the_end_of_its_range_stays_finite(codec: QuantizedCodec):
    layout = replace(LAYOUT, dtype='float16')
    raw = np.where(np.random.default_rng(0).random(layout.shape) < 0.5, -65504, 65504).astype(np.float16)

    found = round_trip(codec, layout, raw.reshape(-1).view(np.uint8)).view(np.float16)

    assert np.isfinite(found).all()


class CountingArithmetic(NumpyArithmetic):
    """Numpy's, that notes whether it was asked."""

    def __init__(self) -> None:
        self.num_outs = {'float32': 0, 'float16': 0}

    def look_up(self, packed, bits, gain, signs, centre, out) -> None:
        self.num_outs[out.memory.dtype.name] += 1
        super().look_up(packed, bits, gain, signs, centre, out)


def test_a_float16_block_is_decoded_by_the_arithmetic_its_quantizers_were_given():
    arithmetic = CountingArithmetic()
    quantizer = RotatedQuantizer(bits=4, norm_bits=8, arithmetic=lambda: arithmetic)
    codec = QuantizedCodec(name='test-4', bits=4, keys=quantizer, values=quantizer)
    layout = replace(LAYOUT, dtype='float16')
    raw = block(layout)

    found = round_trip(codec, layout, raw)

    assert arithmetic.num_outs == {'float32': 0, 'float16': 2}
    by_default = RotatedQuantizer(bits=4, norm_bits=8)
    same = QuantizedCodec(name='test-4', bits=4, keys=by_default, values=by_default)
    assert found.tobytes() == round_trip(same, layout, raw).tobytes()


def test_two_bits_keep_more_than_seven_times_as_many_blocks_of_sixteen_tokens():
    sixteen_bits = replace(LAYOUT, dtype='float16').num_bytes

    assert sixteen_bits / codec_named('rotated-2').num_bytes(LAYOUT) > 7.2
    assert sixteen_bits / codec_named('rotated-4').num_bytes(LAYOUT) > 3.7
    assert sixteen_bits / codec_named('channel-4').num_bytes(LAYOUT) > 3.7


@pytest.mark.parametrize('codec', CODECS, ids=lambda codec: codec.name)
def test_a_stored_name_finds_its_codec(codec: BlockCodec):
    assert codec_named(codec.name) is codec
    assert CodecPolicy().named(codec.name) is codec


def test_a_name_of_another_time_is_refused():
    with pytest.raises(StoreError, match="got 'rotated-3'"):
        codec_named('rotated-3')


@pytest.mark.parametrize('bits', BITS)
@pytest.mark.parametrize('block_tokens', [1, 16, 32, 256])
def test_no_codec_keeps_fewer_bits_than_the_layout_asks_for(bits: int, block_tokens: int):
    layout = replace(LAYOUT, shape=(2, 2, 3, block_tokens, 64), bits=bits)

    assert codec_for(layout).bits == bits


@given(
    bits=st.sampled_from(BITS[:3]),
    block_tokens=st.integers(1, 256),
    num_blocks=st.integers(1, 60),
    sink_tokens=st.integers(4, 40),
    recent_tokens=st.integers(1, 300),
)
def test_sinks_and_the_recent_window_are_exact_at_every_length(
    bits: int, block_tokens: int, num_blocks: int, sink_tokens: int, recent_tokens: int
):
    """Also right after a flush: what went down at a shorter length was chosen for that length's window."""
    policy = CodecPolicy(sink_tokens=sink_tokens, recent_tokens=recent_tokens)
    layout = replace(LAYOUT, shape=(2, 1, 1, block_tokens, 8), bits=bits)
    exact = [
        token
        for index in range(num_blocks)
        if policy.choose(layout, index, num_blocks).name == 'raw'
        for token in range(index * block_tokens, (index + 1) * block_tokens)
    ]

    num_tokens = num_blocks * block_tokens
    assert set(range(min(sink_tokens, num_tokens))) <= set(exact)
    assert set(range(max(0, num_tokens - recent_tokens), num_tokens)) <= set(exact)
    assert len(exact) < sink_tokens + recent_tokens + 2 * block_tokens


@pytest.mark.parametrize('changes', [{'sink_tokens': 3}, {'recent_tokens': 0}])
def test_a_policy_without_sinks_or_window_is_refused(changes: dict[str, int]):
    with pytest.raises(BadRequestError, match='expected at least 4 sink tokens and 1 recent token'):
        CodecPolicy(**changes)
