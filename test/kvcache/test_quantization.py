"""Fewer bits: what comes back, how far off it is, what it costs, and what is refused."""

from collections.abc import Callable
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.arithmetic import Halves, NumpyArithmetic, agree, best_arithmetic, compiled_arithmetic
from kv_agent_ros.kvcache.channel_quantizer import ChannelQuantizer
from kv_agent_ros.kvcache.quantization import Axis, CentredQuantizer, PlainQuantizer, Quantizer, RotatedQuantizer
from kv_agent_ros.kvcache.rotation import Floats, codebook, hadamard, signs, thresholds


def rotated(bits: int, arithmetic: Callable = best_arithmetic) -> RotatedQuantizer:
    return RotatedQuantizer(bits=bits, norm_bits=4 if bits == 2 else 8, arithmetic=arithmetic)


def centred(bits: int, arithmetic: Callable = best_arithmetic) -> CentredQuantizer:
    return CentredQuantizer(mean=rotated(4, arithmetic), rest=rotated(bits, arithmetic))


def plain(bits: int, axis: Axis, group: int = 32, arithmetic: Callable = best_arithmetic) -> PlainQuantizer:
    return PlainQuantizer(bits=bits, axis=axis, group=group, arithmetic=arithmetic)


def by_channel(bits: int, arithmetic: Callable = best_arithmetic) -> ChannelQuantizer:
    return ChannelQuantizer(bits=bits, step_bits=4, middle=rotated(4, arithmetic), arithmetic=arithmetic)


def all_quantizers(arithmetic: Callable = best_arithmetic) -> list[Quantizer]:
    found: list[Quantizer] = [plain(bits, axis, 32, arithmetic) for bits in (2, 4, 8) for axis in Axis]
    return found + [make(bits, arithmetic) for bits in (2, 4) for make in (rotated, centred, by_channel)]


QUANTIZERS = all_quantizers()


def round_trip(quantizer: Quantizer, vectors: np.ndarray) -> np.ndarray:
    out = np.full(vectors.shape, np.nan, np.float32)
    quantizer.decode(quantizer.encode(vectors), out)
    return out


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.square(found - expected).sum() / np.square(expected).sum())


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def keys_with_outlier_channels(tokens: int = 128, channels: int = 64) -> np.ndarray:
    keys = gaussian(4, tokens, channels)
    keys[:, :, [3, 17, 40]] += np.float32([20, -30, 25])
    return keys


@pytest.mark.parametrize('quantizer', QUANTIZERS, ids=repr)
@settings(deadline=None, max_examples=20)
@given(
    rows=st.integers(1, 3),
    tokens=st.integers(1, 40),
    channels=st.integers(1, 70),
    scale=st.sampled_from((1e-42, 1e-33, 1e-9, 1.0, 1e9)),
    seed=st.integers(0, 99),
)
def test_any_shape_comes_back_within_the_range_of_its_row(
    quantizer: Quantizer, rows: int, tokens: int, channels: int, scale: float, seed: int
):
    vectors = gaussian(rows, tokens, channels, seed=seed) * np.float32(scale)

    stored, found = quantizer.encode(vectors), round_trip(quantizer, vectors)

    assert len(stored) == quantizer.num_bytes(vectors.shape)
    assert np.isfinite(found).all()
    assert np.abs(found - vectors).max() <= 2.5 * np.sqrt(channels) * np.abs(vectors).max() + 1e-28


@pytest.mark.parametrize('quantizer', QUANTIZERS, ids=repr)
@pytest.mark.parametrize('value', [0.0, 0.37, -1234.5])
def test_a_constant_block_comes_back_without_a_division_by_its_width(quantizer: Quantizer, value: float):
    vectors = np.full((2, 20, 64), value, np.float32)

    found = round_trip(quantizer, vectors)

    tolerance = 1e-4 if isinstance(quantizer, PlainQuantizer) else 0.2
    assert np.square(found - value).mean() <= tolerance * value**2


@pytest.mark.parametrize('axis', Axis)
def test_a_constant_group_beside_wide_ones_stays_within_its_step(axis: Axis):
    vectors = gaussian(1, 64, 64)
    vectors[:, :32, :32] = 0.37

    found = round_trip(plain(4, axis), vectors)

    assert np.abs(found[:, :32, :32] - 0.37).max() <= np.ptp(vectors) / 255


@pytest.mark.parametrize('quantizer', QUANTIZERS, ids=repr)
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf, 1e16])
def test_what_no_scale_can_hold_is_refused(quantizer: Quantizer, bad: float):
    vectors = gaussian(1, 16, 64)
    vectors[0, 3, 7] = bad

    with pytest.raises(StoreError, match='expected finite numbers up to 1e\\+15'):
        quantizer.encode(vectors)


@pytest.mark.parametrize('quantizer', QUANTIZERS, ids=repr)
def test_scales_beyond_float16_do_not_overflow(quantizer: Quantizer):
    vectors = gaussian(1, 16, 64) * np.float32(1e12)

    assert relative_error(round_trip(quantizer, vectors), vectors) < 0.3


@pytest.mark.parametrize('quantizer', QUANTIZERS, ids=repr)
def test_scales_come_from_the_block_itself(quantizer: Quantizer):
    """A thousand times the block is a thousand times what comes back: there is no default scale to be left in place."""
    vectors = gaussian(2, 16, 64)

    found = round_trip(quantizer, vectors * np.float32(1024))

    assert np.allclose(found, round_trip(quantizer, vectors) * 1024, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize('quantizer', QUANTIZERS, ids=repr)
def test_a_lost_byte_is_noticed_not_decoded(quantizer: Quantizer):
    stored = quantizer.encode(gaussian(2, 16, 64))

    with pytest.raises(StoreError, match='expected'):
        quantizer.decode(stored[:-1], np.empty((2, 16, 64), np.float32))


@pytest.mark.parametrize('make', [rotated, centred])
def test_more_bits_are_never_worse_after_a_rotation(make: Callable[[int], Quantizer]):
    vectors = keys_with_outlier_channels()

    errors = [relative_error(round_trip(make(bits), vectors), vectors) for bits in (2, 4)]

    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize('axis', Axis)
def test_more_bits_are_never_worse_in_groups(axis: Axis):
    vectors = gaussian(4, 64, 64)

    errors = [relative_error(round_trip(plain(bits, axis), vectors), vectors) for bits in (2, 4, 8)]

    assert errors[1] < errors[0] / 8
    assert errors[2] < errors[1] / 8


def test_keys_quantised_along_the_wrong_axis_are_far_worse():
    keys = keys_with_outlier_channels()

    right = relative_error(round_trip(plain(2, Axis.TOKENS), keys), keys)
    wrong = relative_error(round_trip(plain(2, Axis.CHANNELS), keys), keys)

    assert wrong > 8 * right


def test_taking_the_mean_off_is_what_makes_a_rotation_fit_for_keys():
    keys = keys_with_outlier_channels()

    assert relative_error(round_trip(centred(2), keys), keys) < relative_error(round_trip(rotated(2), keys), keys) / 5


def test_two_bits_reach_the_error_that_theory_gives_a_gaussian():
    vectors = gaussian(8, 256, 128)

    assert relative_error(round_trip(rotated(2), vectors), vectors) == pytest.approx(0.1175, rel=0.03)
    assert relative_error(round_trip(rotated(4), vectors), vectors) == pytest.approx(0.0095, rel=0.05)


def test_every_stored_byte_is_in_the_size():
    """64 channels, 16 tokens: 16 codes of 2 bits a quarter byte, 16 norms of 4 bits, one reference of 2 bytes."""
    assert rotated(2).num_bytes((1, 16, 64)) == 16 * 64 // 4 + 16 // 2 + 2
    assert centred(2).num_bytes((1, 16, 64)) == 16 * 64 // 4 + 16 // 2 + 2 + 64 // 2 + 1 + 2
    assert plain(4, Axis.TOKENS).num_bytes((1, 40, 64)) == 40 * 64 // 2 + 2 * 2 * 64 + 6


def test_levels_are_the_published_ones():
    """Max 1960, tables for 4 and 16 levels; the stored format hangs on them."""
    assert codebook(2).tolist() == pytest.approx([-1.510, -0.4528, 0.4528, 1.510], abs=1e-3)
    assert codebook(4)[8:].tolist() == pytest.approx(
        [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], abs=1e-3
    )
    assert thresholds(4)[7] == 0.0
    assert signs(64)[:8].tolist() == [1.0, -1.0, -1.0, -1.0, -1.0, 1.0, -1.0, 1.0]


@pytest.mark.parametrize('channels', [1, 2, 64, 80, 96, 128])
def test_the_transform_is_a_rotation_that_undoes_itself(channels: int):
    vectors = gaussian(3, 5, channels)
    width = channels & -channels

    assert np.allclose(hadamard(hadamard(vectors)) / width, vectors, atol=1e-5)
    assert np.square(hadamard(vectors)).sum() / width == pytest.approx(np.square(vectors).sum(), rel=1e-5)


@pytest.mark.parametrize('shape', [(3, 16, 64), (2, 33, 128), (1, 1, 16), (2, 5, 80), (1, 7, 13), (2, 3, 4)], ids=str)
@pytest.mark.parametrize('place', range(len(QUANTIZERS)))
def test_compiled_and_plain_numpy_agree_to_the_last_bit(place: int, shape: tuple[int, int, int]):
    pytest.importorskip('numba')
    compiled = compiled_arithmetic()
    fast, slow = (all_quantizers(lambda a=a: a)[place] for a in (compiled, NumpyArithmetic()))
    vectors = gaussian(*shape, seed=place)

    stored = fast.encode(vectors)

    assert stored.tobytes() == slow.encode(vectors).tobytes()
    outs = [np.empty(shape, np.float32), np.empty(shape, np.float32)]
    fast.decode(stored, outs[0])
    slow.decode(stored, outs[1])
    assert outs[0].tobytes() == outs[1].tobytes()


def test_halving_agrees_with_numpy_for_every_float16_and_between_them():
    pytest.importorskip('numba')
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = [(halves[:-1] + halves[1:]) / 2, np.nextafter(halves, np.float32(np.inf)), np.float32([7e4, 1e30, 1e-9])]
    values = np.concatenate([halves, *between])
    values = np.concatenate([values, -values])
    outs = [np.empty(values.shape, np.float16) for _ in range(2)]

    compiled_arithmetic().halve(values, outs[0])
    NumpyArithmetic().halve(values, outs[1])

    assert outs[0].tobytes() == outs[1].tobytes()


def test_widening_agrees_with_numpy_for_every_float16():
    pytest.importorskip('numba')
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    halves = np.concatenate([halves, -halves])

    assert compiled_arithmetic().widen(halves).tobytes() == NumpyArithmetic().widen(halves).tobytes()


class OneBitOff(NumpyArithmetic):
    """What a stale cache of a compiler may give."""

    def widen(self, halves: Halves) -> Floats:
        values = super().widen(halves)
        values.view(np.uint32).reshape(-1)[7] ^= 1
        return values


def test_loops_that_give_other_bits_than_numpy_are_found_out():
    assert not agree(OneBitOff(), NumpyArithmetic())
    assert agree(NumpyArithmetic(), NumpyArithmetic())
    pytest.importorskip('numba')
    assert agree(compiled_arithmetic(), NumpyArithmetic())


def test_a_process_that_cannot_write_the_compiler_cache_compiles_without_it():
    """A read-only install: neither the package's folder nor a cache folder of the user can be written."""
    pytest.importorskip('numba')
    code = (
        'import numba.core.caching as caching\n'
        'caching.CacheImpl._locator_classes = []\n'
        'from kv_agent_ros.kvcache.arithmetic import warm_up, best_arithmetic\n'
        'warm_up()\n'
        'print(type(best_arithmetic()).__name__)'
    )

    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=300, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, 'CompiledArithmetic'), done.stderr


def test_channels_that_swing_do_not_spoil_the_others_in_short_blocks():
    """A rotary embedding turns an outlier: no mean takes it off, and a rotation spreads it over all channels."""
    keys = gaussian(4, 16, 64)
    keys[:, :, [3, 35]] = 20 * np.stack((np.cos(np.arange(16)), np.sin(np.arange(16))), axis=-1)
    calm = np.delete(np.arange(64), [3, 35])

    by_its_channels, by_rotation = (round_trip(make(4), keys)[:, :, calm] for make in (by_channel, centred))

    assert relative_error(by_its_channels, keys[:, :, calm]) < 0.012
    assert relative_error(by_rotation, keys[:, :, calm]) > 0.05
