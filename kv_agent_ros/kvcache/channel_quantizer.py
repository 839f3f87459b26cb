"""Keys in short blocks: a middle and a step for each channel, half a bit an element over 16 tokens.

Outliers of keys stay in their channels, and those that a rotary embedding turns swing within a wide range; a rotation
over the channels would spread them over all others. The middles are rotated together, the steps are logarithms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kv_agent_ros.kvcache.arithmetic import Arithmetic, Halves, Lines, PackedCodes, Scales, best_arithmetic
from kv_agent_ros.kvcache.log_scales import codes_above, inverse, scale_table, scales_of
from kv_agent_ros.kvcache.packing import Codes, joined, pack, packed_size, split, wide_above
from kv_agent_ros.kvcache.quantization import RotatedQuantizer, Shape, Vectors, finite, shape_of
from kv_agent_ros.kvcache.rotation import Floats
from kv_agent_ros.kvcache.storage.base import ByteArray


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelQuantizer:
    """All tokens of a channel are one group, its levels at equal distances around its middle as that is decoded."""

    bits: int
    step_bits: int
    middle: RotatedQuantizer
    arithmetic: Callable[[], Arithmetic] = best_arithmetic

    def num_bytes(self, shape: Shape) -> int:
        return sum(self._sizes(shape))

    def encode(self, vectors: Vectors) -> ByteArray:
        vectors = finite(vectors, self.arithmetic())
        middles = self.middle.encode((vectors.min(1) / 2 + vectors.max(1) / 2)[None])
        rest = vectors - self._middles(middles[None], shape_of(vectors))[:, None]
        step = np.abs(rest).max(1) / self._outermost
        largest = wide_above(step.max(1))
        wide = codes_above(step, largest, self.step_bits)
        narrow = np.maximum(wide, 1) - np.uint8(1)  # cuts the outermost elements off, and may still be nearer to all
        trials = [self._nearest(rest, scales_of(codes, largest, self.step_bits)) for codes in (wide, narrow)]
        is_narrow = trials[1].errors < trials[0].errors
        codes = np.where(is_narrow[:, None], trials[1].codes, trials[0].codes)
        step_codes = np.where(is_narrow, narrow, wide)
        return joined(middles, largest, pack(step_codes, self.step_bits), pack(codes, self.bits))

    def decode(self, stored: ByteArray, out: Floats | Halves) -> None:
        self.decode_all(stored[None], shape_of(out), Lines.of(out))

    def decode_all(self, stored: ByteArray, shape: Shape, out: Lines) -> None:
        rows, tokens, channels = len(stored) * shape[0], *shape[1:]
        middles, largest, step_codes, packed = split(stored, self._sizes(shape))
        step = self.arithmetic().scales(
            Scales(
                packed=step_codes.reshape(rows, -1),
                bits=self.step_bits,
                table=scale_table(self.step_bits),
                largest=largest.reshape(-1).view(np.uint16),
            ),
            channels,
        )
        codes = PackedCodes(packed=packed.reshape(rows, tokens, -1), bits=self.bits, origin=float(self._outermost))
        self.arithmetic().scale(codes, self._middles(middles, shape)[:, None], step[:, None], (tokens, 1), out)

    @property
    def _outermost(self) -> np.float32:
        """Steps from the middle to the last level."""
        return np.float32(((1 << self.bits) - 1) / 2)

    def _nearest(self, rest: Floats, step: Floats) -> '_Trial':
        places = rest * inverse(step)[:, None]
        places += self._outermost
        levels: Floats = np.clip(np.rint(places, out=places), 0, 2 * self._outermost, out=places)
        codes = levels.astype(np.uint8)
        levels -= self._outermost
        levels *= step[:, None]
        levels -= rest
        return _Trial(codes=codes, errors=np.einsum('rtc,rtc->rc', levels, levels))

    def _middles(self, stored: ByteArray, shape: Shape) -> Floats:
        """(blocks * rows, channels), as they are decoded."""
        rows, _, channels = shape
        middles = np.empty((len(stored) * rows, channels), np.float32)
        self.middle.decode_all(stored, (1, rows, channels), Lines.of(middles))
        return middles

    def _sizes(self, shape: Shape) -> list[int]:
        rows, _, channels = shape
        return [self.middle.num_bytes((1, rows, channels)), *_own_sizes(shape, self.bits, self.step_bits)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Trial:
    codes: Codes  # (rows, tokens, channels)
    errors: Floats  # (rows, channels)


@lru_cache
def _own_sizes(shape: Shape, bits: int, step_bits: int) -> list[int]:
    rows, tokens, channels = shape
    return [2 * rows, rows * packed_size(channels, step_bits), rows * tokens * packed_size(channels, bits)]
