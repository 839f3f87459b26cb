"""Codes and scales survive the bytes exactly."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
import numpy as np
import pytest

from kv_agent_ros.errors import BadRequestError, StoreError
from kv_agent_ros.kvcache.packing import joined, narrow, pack, packed_size, split, unpack, wide_above

WIDTHS = (2, 4, 8)


@pytest.mark.parametrize('bits', WIDTHS)
def test_every_code_at_every_place_of_a_byte_comes_back(bits: int):
    codes = np.arange(1 << bits, dtype=np.uint8)
    for shift in range(8 // bits):
        moved = np.roll(codes, shift)
        assert unpack(pack(moved, bits), bits, len(moved)).tolist() == moved.tolist()


@given(bits=st.sampled_from(WIDTHS), length=st.integers(1, 33), seed=st.integers(0, 2**32 - 1))
def test_odd_lengths_come_back_and_take_no_more_bytes_than_they_must(bits: int, length: int, seed: int):
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (3, length), dtype=np.uint8)

    packed = pack(codes, bits)

    assert packed.shape == (3, -(-length * bits // 8))
    assert np.array_equal(unpack(packed, bits, length), codes)


def test_four_codes_of_two_bits_share_a_byte():
    assert pack(np.array([1, 2, 3, 0], np.uint8), 2).tolist() == [0b00_11_10_01]


def test_a_width_that_no_byte_is_made_of_is_refused():
    with pytest.raises(BadRequestError, match='expected 2, 4 or 8, got 3'):
        packed_size(8, 3)


@given(arrays(np.float32, 8, elements=st.floats(-(2.0**49), 2.0**49, width=32)))
def test_a_scale_never_gets_smaller_by_being_stored(scales: np.ndarray):
    stored = narrow(wide_above(scales))

    assert (stored >= scales).all()
    assert (np.abs(stored - scales) <= np.abs(scales) / 128 + 1e-38).all()


def test_sections_come_back_and_a_missing_byte_is_noticed():
    stored = joined(np.array([1, 2], np.uint16), np.array([[3], [4]], np.uint8))

    assert [part.tolist() for part in split(stored, [4, 2])] == [[1, 0, 2, 0], [3, 4]]
    with pytest.raises(StoreError, match='expected 6 bytes, got 5'):
        split(stored[:-1], [4, 2])
