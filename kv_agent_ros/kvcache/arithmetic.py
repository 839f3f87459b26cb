"""The inner loops of quantisation: in numpy, and compiled by numba where that is installed. Both give the same bits.

The loops at the end are what numba compiles; each does, element by element and in the same order, what the method of
its name does in `NumpyArithmetic`.
"""

from functools import cache
import importlib
from typing import Any, Protocol  # Any: numba's compiled functions carry no types

import numpy as np
import numpy.typing as npt

from kv_agent_ros.kvcache.packing import Codes, pack, packed_size, unpack
from kv_agent_ros.kvcache.rotation import Floats, codebook, hadamard, rotation_width, thresholds


class Arithmetic(Protocol):
    """Rows of vectors to codes and back; vectors are (rows, tokens, channels), all arrays C-contiguous."""

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        """The packed codes of the levels nearest to vectors * inverse; `inverse` is (rows, tokens)."""
        ...

    def turn(self, vectors: Floats) -> Floats:
        """`rotation.hadamard` of the vectors."""
        ...

    def look_up(self, packed: Codes, bits: int, gain: Floats, signs: Floats, centre: Floats, out: Floats) -> None:
        """out = hadamard(levels) * gain * signs + centre.

        `gain` is (rows, tokens), `signs` (channels,), `centre` (rows, channels).
        """
        ...

    def scale(self, packed: Codes, bits: int, low: Floats, scale: Floats, groups: tuple[int, int], out: Floats) -> None:
        """out = codes * scale + low, which are one for each group of `groups` tokens by channels."""
        ...

    def halve(self, values: Floats, out: npt.NDArray[np.float16]) -> None:
        """out = the nearest float16 of each value, the largest one for what is beyond it; any shape."""
        ...


class NumpyArithmetic:
    """Needs numpy alone."""

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        scaled = vectors * inverse[..., None]
        return pack(np.searchsorted(thresholds(bits), scaled).astype(np.uint8), bits)

    def turn(self, vectors: Floats) -> Floats:
        return hadamard(vectors)

    def look_up(self, packed: Codes, bits: int, gain: Floats, signs: Floats, centre: Floats, out: Floats) -> None:
        levels = codebook(bits)[unpack(packed, bits, out.shape[-1])]
        np.multiply(hadamard(levels), gain[..., None], out=out)
        out *= signs
        out += centre[:, None]

    def scale(self, packed: Codes, bits: int, low: Floats, scale: Floats, groups: tuple[int, int], out: Floats) -> None:
        tokens, channels = (np.arange(n) // group for n, group in zip(out.shape[1:], groups, strict=True))
        np.multiply(unpack(packed, bits, out.shape[-1]), scale[:, tokens[:, None], channels], out=out)
        out += low[:, tokens[:, None], channels]

    def halve(self, values: Floats, out: npt.NDArray[np.float16]) -> None:
        out[:] = np.clip(values, np.float32(-65504), np.float32(65504))


class CompiledArithmetic:
    """The loops below, compiled: the first call ever costs seconds, later processes read numba's cache.

    Vectors whose length is no power of two are rotated by numpy.
    """

    def __init__(self, numba: Any) -> None:
        compiler = numba.njit(cache=True, nogil=True, error_model='numpy')
        self._choose = compiler(_choose)
        self._turn = compiler(_turn)
        self._expand = compiler(_expand)
        self._finish = compiler(_finish)
        self._scale = compiler(_scale)
        self._halve = compiler(_halve)
        self._numpy = NumpyArithmetic()

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        packed = np.empty((*vectors.shape[:2], packed_size(vectors.shape[2], bits)), np.uint8)
        self._choose(vectors, inverse, thresholds(bits), bits, packed)
        return packed

    def turn(self, vectors: Floats) -> Floats:
        length = vectors.shape[-1]
        if rotation_width(length) != length or length < 4:
            return self._numpy.turn(vectors)
        turned = np.empty_like(vectors)
        self._turn(vectors, _log2(length), turned)
        return turned

    def look_up(self, packed: Codes, bits: int, gain: Floats, signs: Floats, centre: Floats, out: Floats) -> None:
        length, per_byte = out.shape[-1], 8 // bits
        if rotation_width(length) != length or length < 4:
            self._numpy.look_up(packed, bits, gain, signs, centre, out)
            return
        wide_levels = _turned_levels(bits)
        self._expand(packed, wide_levels, out.view(wide_levels.dtype))
        self._turn(out, _log2(length) - _log2(per_byte), out)
        self._finish(gain, signs, centre, out)

    def scale(self, packed: Codes, bits: int, low: Floats, scale: Floats, groups: tuple[int, int], out: Floats) -> None:
        self._scale(packed, bits, low, scale, *groups, out)

    def halve(self, values: Floats, out: npt.NDArray[np.float16]) -> None:
        shifted = np.abs(values) + np.float32(0.5)  # which brings the bits of a subnormal half into place, rounded
        bits = [array.reshape(-1).view(np.int32) for array in (values, shifted)]
        self._halve(*bits, out.reshape(-1).view(np.uint16))


@cache
def best_arithmetic() -> Arithmetic:
    """The fastest that this machine has."""
    try:
        return CompiledArithmetic(importlib.import_module('numba'))
    except ImportError:
        return NumpyArithmetic()


@cache
def _turned_levels(bits: int) -> npt.NDArray[np.complexfloating]:
    """(256,) what a byte's codes stand for, the first steps of the transform done, read as one wide number."""
    every_byte = np.arange(256, dtype=np.uint8)[:, None]
    levels = hadamard(codebook(bits)[unpack(every_byte, bits, 8 // bits)])
    wide: npt.NDArray[np.complexfloating] = levels.view(np.complex64 if bits == 4 else np.complex128)
    return wide[:, 0]


def _log2(power: int) -> int:
    return power.bit_length() - 1


# No index arithmetic in the innermost loops, so that the compiler makes vector instructions of them.


def _choose(vectors, inverse, edges, bits, packed):  # type: ignore[no-untyped-def]
    rows, tokens, length = vectors.shape
    size = packed.shape[2]
    scaled = np.empty(length, np.float32)
    codes = np.zeros((8 // bits) * size, np.int32)
    planes = codes.reshape(8 // bits, size)
    for row in range(rows):
        for token in range(tokens):
            factor = inverse[row, token]
            for i in range(length):
                scaled[i] = vectors[row, token, i] * factor
                codes[i] = 0
            for edge in edges:
                for i in range(length):
                    codes[i] += edge < scaled[i]
            for i in range(size):
                byte = 0
                for place in range(8 // bits):
                    byte |= planes[place, i] << (bits * place)
                packed[row, token, i] = byte


def _turn(vectors, num_steps, turned):  # type: ignore[no-untyped-def]
    """The last `num_steps` steps of the transform, two at a time."""
    rows, tokens, length = vectors.shape
    half, quarter = length // 2, length // 4
    here, there = np.empty(length, np.float32), np.empty(length, np.float32)
    here_2, there_2 = here.reshape(2, half), there.reshape(2, half)
    here_4, there_4 = here.reshape(4, quarter), there.reshape(4, quarter)
    here_pairs, there_pairs = here.reshape(half, 2), there.reshape(half, 2)
    here_fours, there_fours = here.reshape(quarter, 4), there.reshape(quarter, 4)
    for row in range(rows):
        for token in range(tokens):
            for i in range(length):
                here[i] = vectors[row, token, i]
            for _ in range(num_steps // 4):
                for i in range(quarter):
                    a, b = here_4[0, i] + here_4[2, i], here_4[1, i] + here_4[3, i]
                    c, d = here_4[0, i] - here_4[2, i], here_4[1, i] - here_4[3, i]
                    there_fours[i, 0], there_fours[i, 1] = a + b, a - b
                    there_fours[i, 2], there_fours[i, 3] = c + d, c - d
                for i in range(quarter):
                    a, b = there_4[0, i] + there_4[2, i], there_4[1, i] + there_4[3, i]
                    c, d = there_4[0, i] - there_4[2, i], there_4[1, i] - there_4[3, i]
                    here_fours[i, 0], here_fours[i, 1] = a + b, a - b
                    here_fours[i, 2], here_fours[i, 3] = c + d, c - d
            if num_steps & 2:
                for i in range(quarter):
                    a, b = here_4[0, i] + here_4[2, i], here_4[1, i] + here_4[3, i]
                    c, d = here_4[0, i] - here_4[2, i], here_4[1, i] - here_4[3, i]
                    there_fours[i, 0], there_fours[i, 1] = a + b, a - b
                    there_fours[i, 2], there_fours[i, 3] = c + d, c - d
                if num_steps & 1:
                    for i in range(half):
                        here_pairs[i, 0], here_pairs[i, 1] = (
                            there_2[0, i] + there_2[1, i],
                            there_2[0, i] - there_2[1, i],
                        )
                else:
                    here[:] = there
            elif num_steps & 1:
                for i in range(half):
                    there_pairs[i, 0], there_pairs[i, 1] = here_2[0, i] + here_2[1, i], here_2[0, i] - here_2[1, i]
                here[:] = there
            for i in range(length):
                turned[row, token, i] = here[i]


def _expand(packed, wide_levels, wide_out):  # type: ignore[no-untyped-def]
    rows, tokens, size = packed.shape
    for row in range(rows):
        for token in range(tokens):
            for i in range(size):
                wide_out[row, token, i] = wide_levels[packed[row, token, i]]


def _finish(gain, signs, centre, out):  # type: ignore[no-untyped-def]
    rows, tokens, length = out.shape
    for row in range(rows):
        for token in range(tokens):
            factor = gain[row, token]
            for i in range(length):
                out[row, token, i] = out[row, token, i] * factor * signs[i] + centre[row, i]


def _scale(packed, bits, low, scale, token_group, channel_group, out):  # type: ignore[no-untyped-def]
    rows, tokens, length = out.shape
    size, num_parts = packed.shape[2], low.shape[2]
    mask = np.uint8((1 << bits) - 1)
    codes = np.empty(size * (8 // bits), np.float32)
    planes = codes.reshape(8 // bits, size)
    for row in range(rows):
        for token in range(tokens):
            for place in range(8 // bits):
                shift = np.uint8(bits * place)
                for i in range(size):
                    planes[place, i] = np.float32((packed[row, token, i] >> shift) & mask)
            lows, scales = low[row, token // token_group], scale[row, token // token_group]
            line = out[row, token]
            if channel_group == 1:
                for i in range(length):
                    line[i] = codes[i] * scales[i] + lows[i]
            else:
                for part in range(num_parts):
                    first, end = part * channel_group, min(length, (part + 1) * channel_group)
                    factor, offset = scales[part], lows[part]
                    run, source = line[first:end], codes[first:end]
                    for i in range(end - first):
                        run[i] = source[i] * factor + offset


def _halve(bits, shifted, halves):  # type: ignore[no-untyped-def]
    """Float32 to float16 by their bits, ties to even: numpy converts one element at a time."""
    for i in range(len(bits)):
        sign = (bits[i] >> 16) & 0x8000
        size = min(bits[i] & 0x7FFFFFFF, 0x477FE000)  # 65504
        normal = (size + 0xFFF + ((size >> 13) & 1) - 0x38000000) >> 13
        small = shifted[i] - 0x3F000000
        halves[i] = sign | (small if size < 0x38800000 else normal)
