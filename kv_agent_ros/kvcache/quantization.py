"""Keys and values with fewer bits: asymmetric groups, or a rotation with a codebook; every stored byte is counted.

A quantizer turns rows of vectors (rows, tokens, channels), one row a KV head of a layer, into one run of bytes whose
length follows from the shape, and back. Scales and norms lie beside the codes, so nothing else is needed to decode.
Liu et al. 2024 (KIVI), Zandieh et al. 2025 (TurboQuant).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kv_agent_ros.errors import StoreError
from kv_agent_ros.kvcache.arithmetic import Arithmetic, Halves, Lines, PackedCodes, Scales, best_arithmetic
from kv_agent_ros.kvcache.log_scales import inverse, nearest_codes, scale_table, scales_of
from kv_agent_ros.kvcache.packing import Codes, Wide, joined, narrow, pack, packed_size, split, wide_above
from kv_agent_ros.kvcache.rotation import Floats, rotation_width, signs
from kv_agent_ros.kvcache.storage.base import ByteArray

Shape = tuple[int, int, int]  # (rows, tokens, channels)
Vectors = npt.NDArray[np.floating]

LARGEST = 1e15  # the squares of larger numbers, summed, leave the range of float32


class Quantizer(Protocol):
    """One way to write rows of vectors."""

    def num_bytes(self, shape: Shape) -> int:
        """What `encode` returns for this shape, every scale included."""
        ...

    def encode(self, vectors: Vectors) -> ByteArray:
        """Of any float dtype. Raises StoreError for NaN, infinities and numbers beyond 1e15."""
        ...

    def decode(self, stored: ByteArray, out: Floats | Halves) -> None:
        """Fill `out`, C-contiguous, float32 or float16. Raises StoreError when `stored` has the wrong length."""
        ...

    def decode_all(self, stored: ByteArray, shape: Shape, out: Lines) -> None:
        """Of (blocks, bytes) every block of this shape, into lines. Raises StoreError as decode()."""
        ...


class Axis(Enum):
    """Along what the elements of a group are neighbours."""

    TOKENS = 1
    """A group is one channel of some tokens: for keys, whose outliers stay in their channels."""
    CHANNELS = 2
    """A group is some channels of one token: for values, which have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainQuantizer:
    """Asymmetric groups, each with its least element and its step in 8 bits of the row's range; odd tails are groups.

    `group` counts tokens or channels.
    """

    bits: int
    axis: Axis
    group: int
    arithmetic: Callable[[], Arithmetic] = best_arithmetic

    def num_bytes(self, shape: Shape) -> int:
        return sum(self._sizes(shape))

    def encode(self, vectors: Vectors) -> ByteArray:
        vectors = finite(vectors, self.arithmetic())
        axis = self.axis.value
        starts = np.arange(0, vectors.shape[axis], self.group)
        low, high = np.minimum.reduceat(vectors, starts, axis), np.maximum.reduceat(vectors, starts, axis)
        above_base = wide_above(-low.min((1, 2)))  # the base, negated: rounded away from every element
        base = -narrow(above_base)[:, None, None]
        low_range = wide_above((low - base).max((1, 2)))
        low_codes = np.floor(_share(low - base, low_range)).astype(np.uint8)
        low = _part(low_codes, low_range) + base
        step = np.maximum(high - low, 0) / np.float32((1 << self.bits) - 1)
        step_range = wide_above(step.max((1, 2)))
        step_codes = np.ceil(_share(step, step_range)).astype(np.uint8)
        codes = self._codes(vectors, low, _part(step_codes, step_range))
        return joined(above_base, low_range, step_range, low_codes, step_codes, pack(codes, self.bits))

    def decode(self, stored: ByteArray, out: Floats | Halves) -> None:
        self.decode_all(stored[None], shape_of(out), Lines.of(out))

    def decode_all(self, stored: ByteArray, shape: Shape, out: Lines) -> None:
        rows, tokens, channels = len(stored) * shape[0], *shape[1:]
        sections = split(stored, self._sizes(shape))
        above_base, low_range, step_range = (section.reshape(-1).view(np.uint16) for section in sections[:3])
        metadata_shape = self._metadata_shape((rows, tokens, channels))
        low_codes, step_codes = (section.reshape(metadata_shape) for section in sections[3:5])
        low = _part(low_codes, low_range) - narrow(above_base)[:, None, None]
        groups = (self.group, 1) if self.axis is Axis.TOKENS else (1, self.group)
        codes = PackedCodes(packed=sections[5].reshape(rows, tokens, -1), bits=self.bits, origin=0.0)
        self.arithmetic().scale(codes, low, _part(step_codes, step_range), groups, out)

    def _codes(self, vectors: Floats, low: Floats, step: Floats) -> Codes:
        places, axis = np.arange(vectors.shape[self.axis.value]) // self.group, self.axis.value
        steps = (vectors - low.take(places, axis)) * inverse(step).take(places, axis)
        codes: Codes = np.clip(np.rint(steps), 0, (1 << self.bits) - 1).astype(np.uint8)
        return codes

    def _metadata_shape(self, shape: Shape) -> Shape:
        rows, tokens, channels = shape
        if self.axis is Axis.TOKENS:
            return (rows, -(-tokens // self.group), channels)
        return (rows, tokens, -(-channels // self.group))

    def _sizes(self, shape: Shape) -> list[int]:
        rows, tokens, channels = shape
        num_groups = math.prod(self._metadata_shape(shape))
        packed = rows * tokens * packed_size(channels, self.bits)
        return [2 * rows, 2 * rows, 2 * rows, num_groups, num_groups, packed]


@dataclass(frozen=True, kw_only=True, slots=True)
class RotatedQuantizer:
    """A rotation, a norm per token in steps below the row's largest, and the best codebook for a Gaussian."""

    bits: int
    norm_bits: int  # 8: steps of 1/16 octave, 4: of 1/4 octave
    arithmetic: Callable[[], Arithmetic] = best_arithmetic

    def num_bytes(self, shape: Shape) -> int:
        return sum(self._sizes(shape))

    def encode(self, vectors: Vectors) -> ByteArray:
        vectors = finite(vectors, self.arithmetic())
        channels = vectors.shape[2]
        turned = self.arithmetic().turn(vectors, signs(channels))
        norms = np.sqrt(np.einsum('rtc,rtc->rt', turned, turned) / np.float32(channels)) * _unit(channels)
        reference = wide_above(norms.max(1))
        norm_codes = nearest_codes(norms, reference, self.norm_bits)
        factors = inverse(scales_of(norm_codes, reference, self.norm_bits)) * _unit(channels)
        codes = self.arithmetic().choose(turned, factors, self.bits)
        return joined(reference, pack(norm_codes, self.norm_bits), codes)

    def decode(self, stored: ByteArray, out: Floats | Halves) -> None:
        self.decode_all(stored[None], shape_of(out), Lines.of(out))

    def decode_all(self, stored: ByteArray, shape: Shape, out: Lines) -> None:
        self.decode_around(np.zeros((len(stored) * shape[0], shape[2]), np.float32), stored, shape, out)

    def decode_around(self, centre: Floats, stored: ByteArray, shape: Shape, out: Lines) -> None:
        """As `decode_all`, with `centre` (blocks * rows, channels) added to every token."""
        rows, tokens, channels = len(stored) * shape[0], *shape[1:]
        reference, packed_norms, packed = split(stored, self._sizes(shape))
        norms = Scales(
            packed=packed_norms.reshape(rows, -1),
            bits=self.norm_bits,
            table=_unit_norm_table(self.norm_bits, channels),
            largest=reference.reshape(-1).view(np.uint16),
        )
        self.arithmetic().look_up(packed.reshape(rows, tokens, -1), self.bits, norms, signs(channels), centre, out)

    def _sizes(self, shape: Shape) -> list[int]:
        return _rotated_sizes(shape, self.bits, self.norm_bits)


@dataclass(frozen=True, kw_only=True, slots=True)
class CentredQuantizer:
    """Each channel's mean over the tokens, which holds most of the energy of keys, and then the rest.

    The rest is what is left of the mean as it will be decoded, so that the mean's own errors are coded with it.
    """

    mean: RotatedQuantizer
    rest: RotatedQuantizer

    def num_bytes(self, shape: Shape) -> int:
        return sum(self._sizes(shape))

    def encode(self, vectors: Vectors) -> ByteArray:
        vectors = finite(vectors, self.rest.arithmetic())
        mean = self.mean.encode(vectors.mean(1)[None])
        return joined(mean, self.rest.encode(vectors - self._centre(mean[None], shape_of(vectors))[:, None]))

    def decode(self, stored: ByteArray, out: Floats | Halves) -> None:
        self.decode_all(stored[None], shape_of(out), Lines.of(out))

    def decode_all(self, stored: ByteArray, shape: Shape, out: Lines) -> None:
        mean, rest = split(stored, self._sizes(shape))
        self.rest.decode_around(self._centre(mean, shape), rest, shape, out)

    def _centre(self, mean: ByteArray, shape: Shape) -> Floats:
        rows, _, channels = shape
        centre = np.empty((len(mean) * rows, channels), np.float32)
        self.mean.decode_all(mean, (1, rows, channels), Lines.of(centre))
        return centre

    def _sizes(self, shape: Shape) -> list[int]:
        rows, _, channels = shape
        return [self.mean.num_bytes((1, rows, channels)), self.rest.num_bytes(shape)]


def finite(vectors: Vectors, arithmetic: Arithmetic) -> Floats:
    """As float32. Raises StoreError for NaN, infinities and numbers beyond 1e15: no scale can hold them."""
    is_half = vectors.dtype == np.float16 and vectors.flags.c_contiguous and vectors.flags.aligned
    floats = arithmetic.widen(vectors.view(np.float16)) if is_half else vectors.astype(np.float32, copy=False)
    largest = max(abs(float(floats.min(initial=0.0))), abs(float(floats.max(initial=0.0))))
    if not largest <= LARGEST:
        raise StoreError(f'quantisation: expected finite numbers up to {LARGEST:g}, got {largest}')
    return floats


def shape_of(vectors: Floats | Halves) -> Shape:
    rows, tokens, channels = vectors.shape
    return rows, tokens, channels


def _unit(channels: int) -> np.float32:
    """What makes the transform a rotation."""
    return np.float32(rotation_width(channels) ** -0.5)


def _share(values: Floats, largest: Wide) -> Floats:
    """Values of each row as parts of 255 of its largest."""
    shares: Floats = values * inverse(narrow(largest) / np.float32(255))[:, None, None]
    return np.minimum(shares, np.float32(255), out=shares)


def _part(codes: Codes, largest: Wide) -> Floats:
    values: Floats = codes * (narrow(largest) / np.float32(255))[:, None, None]
    return values


@lru_cache
def _rotated_sizes(shape: Shape, bits: int, norm_bits: int) -> list[int]:
    rows, tokens, channels = shape
    return [2 * rows, rows * packed_size(tokens, norm_bits), rows * tokens * packed_size(channels, bits)]


@cache
def _unit_norm_table(bits: int, channels: int) -> Floats:
    """The same, with what makes the transform a rotation."""
    return scale_table(bits) * _unit(channels)
