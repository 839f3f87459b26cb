"""The inner loops of quantisation: in numpy, and compiled by numba where that is installed. Both give the same bits.

Sums of levels are exact in float32, in any order, because levels are rounded; all else is done in the same order.
"""

from collections.abc import Callable
from functools import cache
import importlib
from typing import Any, Protocol  # Any: numba's compiled functions carry no types

import numpy as np
import numpy.typing as npt

from kv_agent_ros.kvcache import arithmetic_loops as loops
from kv_agent_ros.kvcache.packing import Codes, pack, packed_size, unpack
from kv_agent_ros.kvcache.rotation import LEVEL_STEP, Floats, codebook, hadamard, rotation_width, thresholds

LARGEST_HALF = np.float32(65504)

Halves = npt.NDArray[np.float16]
ABREAST = 16  # vectors that are turned together; the measured best for 64 to 128 channels
PART_ELEMENTS = 1 << 15  # of float32 that wait to become float16; they stay in the processor's cache


class Arithmetic(Protocol):
    """Rows of vectors to codes and back; vectors are (rows, tokens, channels), all arrays C-contiguous.

    What goes `out` may be float32 or float16, which gets its largest number for what is beyond it.
    """

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        """The packed codes of the levels nearest to vectors * inverse; `inverse` is (rows, tokens)."""
        ...

    def turn(self, vectors: Floats) -> Floats:
        """`rotation.hadamard` of the vectors."""
        ...

    def look_up(
        self, packed: Codes, bits: int, gain: Floats, signs: Floats, centre: Floats, out: Floats | Halves
    ) -> None:
        """out = hadamard(levels) * gain * signs + centre.

        `gain` is (rows, tokens), `signs` (channels,), `centre` (rows, channels).
        """
        ...

    def scale(
        self, packed: Codes, bits: int, low: Floats, step: Floats, groups: tuple[int, int], out: Floats | Halves
    ) -> None:
        """out = codes * step + low, which are one for each group of `groups` tokens by channels."""
        ...

    def halve(self, values: Floats, out: Halves) -> None:
        """out = the nearest float16 of each value, the largest one for what is beyond it; any shape."""
        ...

    def widen(self, halves: Halves) -> Floats:
        """The same numbers as float32; any shape."""
        ...


class NumpyArithmetic:
    """Needs numpy alone."""

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        scaled = vectors * inverse[..., None]
        return pack(np.searchsorted(thresholds(bits), scaled).astype(np.uint8), bits)

    def turn(self, vectors: Floats) -> Floats:
        return hadamard(vectors)

    def look_up(
        self, packed: Codes, bits: int, gain: Floats, signs: Floats, centre: Floats, out: Floats | Halves
    ) -> None:
        values = hadamard(codebook(bits)[unpack(packed, bits, out.shape[-1])])
        values *= gain[..., None]
        values *= signs
        values += centre[:, None]
        _put(values, out)

    def scale(
        self, packed: Codes, bits: int, low: Floats, step: Floats, groups: tuple[int, int], out: Floats | Halves
    ) -> None:
        tokens, channels = (np.arange(n) // group for n, group in zip(out.shape[1:], groups, strict=True))
        values = unpack(packed, bits, out.shape[-1]) * step[:, tokens[:, None], channels]
        values += low[:, tokens[:, None], channels]
        _put(values, out)

    def halve(self, values: Floats, out: Halves) -> None:
        np.clip(values, -LARGEST_HALF, LARGEST_HALF, out=out, casting='same_kind')

    def widen(self, halves: Halves) -> Floats:
        return halves.astype(np.float32)


class CompiledArithmetic:
    """`arithmetic_loops`, compiled: the first call ever costs seconds, later processes read numba's cache.

    Vectors whose runs for the transform are too short for a byte of codes are rotated by numpy.
    """

    def __init__(self, numba: Any) -> None:
        compiler = _compiler(numba)
        self._choose = compiler(loops.choose)
        self._turn = compiler(loops.turn)
        self._look_up = compiler(loops.look_up)
        self._scale = compiler(loops.scale)
        self._halve = compiler(loops.halve)
        self._widen = compiler(loops.widen)
        self._numpy = NumpyArithmetic()

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        packed = np.empty((*vectors.shape[:2], packed_size(vectors.shape[2], bits)), np.uint8)
        grid = _grid(bits)
        self._choose(_flat(vectors), inverse.reshape(-1), grid, np.float32(RESOLUTION), bits, _flat(packed))
        return packed

    def turn(self, vectors: Floats) -> Floats:
        turned = np.empty_like(vectors)
        self._turn(_flat(vectors), rotation_width(vectors.shape[-1]), ABREAST, _flat(turned))
        return turned

    def look_up(
        self, packed: Codes, bits: int, gain: Floats, signs: Floats, centre: Floats, out: Floats | Halves
    ) -> None:
        width = rotation_width(out.shape[-1])
        if width < 8 // bits:
            self._numpy.look_up(packed, bits, gain, signs, centre, out)
            return
        levels = _turned_levels(bits)

        def write(rows: slice, part: Floats) -> None:
            target = _flat(part)
            codes, norms = _flat(packed[rows]), gain[rows].reshape(-1)
            self._look_up(codes, levels, width, ABREAST, norms, signs, centre[rows], target, target.view(levels.dtype))

        self._write(out, write)

    def scale(
        self, packed: Codes, bits: int, low: Floats, step: Floats, groups: tuple[int, int], out: Floats | Halves
    ) -> None:
        codes = _wide_codes(bits)
        self._write(out, lambda rows, part: self._scale(packed[rows], codes, low[rows], step[rows], *groups, part))

    def halve(self, values: Floats, out: Halves) -> None:
        self._halve(values.reshape(-1), out.reshape(-1).view(np.uint16))

    def widen(self, halves: Halves) -> Floats:
        values = np.empty(halves.shape, np.float32)
        self._widen(halves.reshape(-1).view(np.uint16), _every_half(), values.reshape(-1))
        return values

    def _write(self, out: Floats | Halves, write: Callable[[slice, Floats], None]) -> None:
        """Some rows after the others, through float32 where `out` is not."""
        if out.dtype == np.float32:
            write(slice(None), out.view(np.float32))
            return
        step = max(1, PART_ELEMENTS // max(1, out[0].size))
        values = np.empty((step, *out.shape[1:]), np.float32)
        for first in range(0, len(out), step):
            rows = slice(first, min(first + step, len(out)))
            part = values[: rows.stop - first]
            write(rows, part)
            self.halve(part, out[rows].view(np.float16))


@cache
def best_arithmetic() -> Arithmetic:
    """The fastest that this machine has."""
    try:
        return CompiledArithmetic(importlib.import_module('numba'))
    except ImportError:
        return NumpyArithmetic()


def _compiler(numba: Any) -> Callable[[Any], Any]:
    def compiled(loop: Any) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, error_model='numpy')(loop)
        except RuntimeError:  # no folder for numba's cache can be written
            return numba.njit(nogil=True, error_model='numpy')(loop)

    return compiled


RESOLUTION = 2 / LEVEL_STEP  # places of a unit: edges are means of two levels


@cache
def _grid(bits: int) -> Codes:
    """The code of every place from beyond the lowest edge to beyond the highest one; 0 is in the middle."""
    edges = np.rint(thresholds(bits) * RESOLUTION).astype(np.int64)
    highest = int(edges[-1]) + 1
    return np.searchsorted(edges, np.arange(-highest, highest + 1)).astype(np.uint8)


@cache
def _turned_levels(bits: int) -> npt.NDArray[np.generic]:
    """(256,) what a byte's codes stand for, the first steps of the transform done, read as one wide number."""
    return _wide(hadamard(codebook(bits)[_every_byte(bits)]))


@cache
def _wide_codes(bits: int) -> npt.NDArray[np.generic]:
    """(256,) a byte's codes as float32, read as one wide number."""
    return _wide(_every_byte(bits).astype(np.float32))


@cache
def _every_half() -> Floats:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _every_byte(bits: int) -> Codes:
    return unpack(np.arange(256, dtype=np.uint8)[:, None], bits, 8 // bits)


def _wide(rows: Floats) -> npt.NDArray[np.generic]:
    dtypes = {1: np.float32, 2: np.complex64, 4: np.complex128}
    return np.ascontiguousarray(rows).view(dtypes[rows.shape[1]])[:, 0]


def _flat(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows.reshape(-1, rows.shape[-1])


def _put(values: Floats, out: Floats | Halves) -> None:
    if out.dtype == np.float16:
        np.clip(values, -LARGEST_HALF, LARGEST_HALF, out=values)
    out[:] = values
