"""The inner loops of quantisation: in numpy, and compiled by numba where that is installed. Both give the same bits.

Sums of levels are exact in float32, in any order, because levels are rounded; all else is done in the same order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
import logging
from typing import Any, Protocol  # Any: numba's compiled functions carry no types

import numpy as np
import numpy.typing as npt

from kv_agent_ros.kvcache.packing import Codes, Wide, narrow, pack, packed_size, unpack
from kv_agent_ros.kvcache.rotation import LEVEL_STEP, Floats, codebook, hadamard, rotation_width, thresholds

LARGEST_HALF = np.float32(65504)

_log = logging.getLogger(__name__)

Halves = npt.NDArray[np.float16]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scales:
    """A number for every token or channel of a row: table[code] times the row's largest."""

    packed: Codes  # (rows, packed_size(n, bits))
    bits: int
    table: Floats  # (2**bits,)
    largest: Wide  # (rows,)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedCodes:
    """Levels at equal distances: those of (rows, tokens, channels), counted from one of them or from between two."""

    packed: Codes  # (rows, tokens, packed_size(channels, bits))
    bits: int
    origin: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lines:
    """Where vectors go: each one into a line of some memory, an engine's for example."""

    memory: Floats | Halves  # (lines, channels), C-contiguous
    places: Places  # (vectors,), the line of each one

    @classmethod
    def of(cls, out: Floats | Halves) -> 'Lines':
        """All of an array (…, channels), in its order."""
        memory = _flat(out)
        return cls(memory=memory, places=_in_order(len(memory)))

    def put(self, vectors: npt.NDArray[Any]) -> None:
        """Write (…, channels), in their order."""
        self.memory[self.places] = _flat(vectors)


class Arithmetic(Protocol):
    """Rows of vectors to codes and back; vectors are (rows, tokens, channels), all arrays C-contiguous.

    What goes `out` may be float32 or float16, which gets its largest number for what is beyond it.
    """

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        """The packed codes of the levels nearest to vectors * inverse; `inverse` is (rows, tokens)."""
        ...

    def turn(self, vectors: Floats, signs: Floats) -> Floats:
        """`rotation.hadamard` of vectors * signs."""
        ...

    def scales(self, packed: Scales, num: int) -> Floats:
        """(rows, num) numbers."""
        ...

    def look_up(self, packed: Codes, bits: int, norms: Scales, signs: Floats, centre: Floats, out: Lines) -> None:
        """out = hadamard(levels) * norms * signs + centre; `signs` is (channels,), `centre` (rows, channels)."""
        ...

    def scale(self, codes: PackedCodes, low: Floats, step: Floats, groups: tuple[int, int], out: Lines) -> None:
        """out = (codes - origin) * step + low; these two are one for each group of `groups` tokens by channels."""
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

    def turn(self, vectors: Floats, signs: Floats) -> Floats:
        return hadamard(vectors * signs)

    def scales(self, packed: Scales, num: int) -> Floats:
        found: Floats = packed.table[unpack(packed.packed, packed.bits, num)] * narrow(packed.largest)[:, None]
        return found

    def look_up(self, packed: Codes, bits: int, norms: Scales, signs: Floats, centre: Floats, out: Lines) -> None:
        values = hadamard(codebook(bits)[unpack(packed, bits, len(signs))])
        values *= self.scales(norms, packed.shape[1])[..., None]
        values *= signs
        values += centre[:, None]
        _put(values, out)

    def scale(self, codes: PackedCodes, low: Floats, step: Floats, groups: tuple[int, int], out: Lines) -> None:
        shape = codes.packed.shape[1], out.memory.shape[1]
        tokens, channels = (np.arange(n) // group for n, group in zip(shape, groups, strict=True))
        values = unpack(codes.packed, codes.bits, shape[1]) - np.float32(codes.origin)
        values *= step[:, tokens[:, None], channels]
        values += low[:, tokens[:, None], channels]
        _put(values, out)

    def halve(self, values: Floats, out: Halves) -> None:
        np.clip(values, -LARGEST_HALF, LARGEST_HALF, out=out, casting='same_kind')

    def widen(self, halves: Halves) -> Floats:
        return halves.astype(np.float32)


class CompiledArithmetic:
    """`compiled_loops`: the first call ever costs seconds, later processes read numba's cache."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops
        self._numpy = NumpyArithmetic()

    def choose(self, vectors: Floats, inverse: Floats, bits: int) -> Codes:
        packed = np.empty((*vectors.shape[:2], packed_size(vectors.shape[2], bits)), np.uint8)
        resolution = np.float32(RESOLUTION)
        self._loops.choose(_flat(vectors), inverse.reshape(-1), _code_at(bits), resolution, bits, _flat(packed))
        return packed

    def turn(self, vectors: Floats, signs: Floats) -> Floats:
        turned = np.empty_like(vectors)
        self._loops.turn(_flat(vectors), signs, rotation_width(vectors.shape[-1]), _flat(turned))
        return turned

    def scales(self, packed: Scales, num: int) -> Floats:
        found = np.empty((len(packed.largest), num), np.float32)
        self._loops.scales(packed.packed, packed.bits, packed.table, packed.largest, found)
        return found

    def look_up(self, packed: Codes, bits: int, norms: Scales, signs: Floats, centre: Floats, out: Lines) -> None:
        codes, levels, width = _flat(packed), _wide_levels(bits), rotation_width(len(signs))
        scales = (norms.packed, norms.bits, norms.table, norms.largest)

        self._write(
            out, lambda places, to: self._loops.look_up(codes, levels, width, *scales, signs, centre, places, to)
        )

    def scale(self, codes: PackedCodes, low: Floats, step: Floats, groups: tuple[int, int], out: Lines) -> None:
        wide = _wide_codes(codes.bits, codes.origin)
        self._write(out, lambda places, to: self._loops.scale(codes.packed, wide, low, step, *groups, places, to))

    def halve(self, values: Floats, out: Halves) -> None:
        if self._loops.CAN_HALVE:
            self._loops.halve(values.reshape(-1), out.reshape(-1).view(np.uint16))
        else:
            self._numpy.halve(values, out)

    def widen(self, halves: Halves) -> Floats:
        if not self._loops.CAN_HALVE:
            return self._numpy.widen(halves)
        values = np.empty(halves.shape, np.float32)
        self._loops.widen(halves.reshape(-1).view(np.uint16), values.reshape(-1))
        return values

    def _write(self, out: Lines, write: Callable[[Places, npt.NDArray[Any]], None]) -> None:
        """Straight into `out`, the bits of float16 as integers, where the processor knows float16."""
        if out.memory.dtype == np.float32:
            write(out.places, out.memory)
        elif self._loops.CAN_HALVE:
            write(out.places, out.memory.view(np.uint16))
        else:
            values = np.empty((len(out.places), out.memory.shape[1]), np.float32)
            write(_in_order(len(values)), values)
            _put(values, out)


def compiled_arithmetic() -> CompiledArithmetic:
    """Raises ImportError where numba is not installed."""
    from kv_agent_ros.kvcache import compiled_loops  # noqa: PLC0415 (it needs numba)

    return CompiledArithmetic(compiled_loops)


@cache
def best_arithmetic() -> Arithmetic:
    """The fastest that this machine has and that gives numpy's bits; looks once a process, which compiles all there is.

    A compiler's cache may be of another version of the loops, and wrong numbers have good checksums.
    """
    exact = NumpyArithmetic()
    try:
        compiled = compiled_arithmetic()
    except ImportError:
        return exact
    if agree(compiled, exact):
        return compiled
    _log.error(
        'compiled loops of quantisation: expected the bits of numpy, got others; numpy is used, which is slower.'
    )
    _log.error("Delete numba's cache, the *.nbi files in __pycache__ beside arithmetic.py or in NUMBA_CACHE_DIR")
    return exact


def warm_up() -> None:
    """Compile, or read from the compiler's cache, all that blocks need; else the first block waits for it."""
    best_arithmetic()


def agree(one: Arithmetic, other: Arithmetic) -> bool:
    """Whether both give the same bits for a sample of all that there is."""
    return all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(_sample(one), _sample(other), strict=True))


def _sample(arithmetic: Arithmetic) -> Iterator[npt.NDArray[Any]]:
    random = np.random.default_rng(0)
    for shape in ((2, 5, 64), (1, 3, 24)):
        rows, tokens, channels = shape
        vectors = random.standard_normal(shape, np.float32)
        centre, signs = vectors[:, 0], np.sign(vectors[0, 0])
        norms = Scales(
            packed=random.integers(0, 256, (rows, tokens), np.uint8),
            bits=8,
            table=random.random(256, np.float32),
            largest=random.integers(0x3F00, 0x4000, rows, np.uint16),
        )
        halves = np.zeros(shape, np.float16)
        arithmetic.halve(vectors, halves)
        yield from (halves, arithmetic.widen(halves), arithmetic.turn(vectors, signs), arithmetic.scales(norms, tokens))
        for bits in (2, 4, 8):
            packed = random.integers(0, 256, (rows, tokens, packed_size(channels, bits)), np.uint8)
            codes = PackedCodes(packed=packed, bits=bits, origin=0.5)
            for out in (np.zeros(shape, np.float32), np.zeros(shape, np.float16)):
                arithmetic.scale(codes, vectors, vectors, (1, 1), Lines.of(out))
                yield out.copy()
                if bits < 8:
                    arithmetic.look_up(packed, bits, norms, signs, np.ascontiguousarray(centre), Lines.of(out))
                    yield out
            if bits < 8:
                yield arithmetic.choose(vectors, np.abs(vectors[..., 0]), bits)


RESOLUTION = 2 / LEVEL_STEP  # places of a unit: edges are means of two levels


@cache
def _code_at(bits: int) -> Codes:
    """The code of every place from beyond the lowest edge to beyond the highest one; 0 is in the middle."""
    edges = np.rint(thresholds(bits) * RESOLUTION).astype(np.int64)
    highest = int(edges[-1]) + 1
    return np.searchsorted(edges, np.arange(-highest, highest + 1)).astype(np.uint8)


@cache
def _wide_levels(bits: int) -> npt.NDArray[np.generic]:
    """(256,) what a byte's codes stand for, read as one wide number."""
    return _wide(codebook(bits)[_every_byte(bits)])


@cache
def _wide_codes(bits: int, origin: float) -> npt.NDArray[np.generic]:
    """(256,) a byte's codes, from the origin on, as float32, read as one wide number."""
    return _wide(_every_byte(bits) - np.float32(origin))


def _every_byte(bits: int) -> Codes:
    return unpack(np.arange(256, dtype=np.uint8)[:, None], bits, 8 // bits)


def _wide(rows: Floats) -> npt.NDArray[np.generic]:
    dtypes = {1: np.float32, 2: np.complex64, 4: np.complex128}
    return np.ascontiguousarray(rows).view(dtypes[rows.shape[1]])[:, 0]


@cache
def _in_order(num: int) -> Places:
    return np.arange(num)


def _flat(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows.reshape(-1, rows.shape[-1])


def _put(values: Floats, out: Lines) -> None:
    if out.memory.dtype == np.float16:
        np.clip(values, -LARGEST_HALF, LARGEST_HALF, out=values)
    out.put(values)
