"""Scales in 4 or 8 bits: equal steps of their logarithm below the largest of their row, which is kept beside them.

Code 0 is no scale at all: of a zero vector, or of a channel that does not change.
"""

from functools import cache

import numpy as np

from kv_agent_ros.kvcache.packing import Codes, Wide, narrow
from kv_agent_ros.kvcache.rotation import Floats

SMALLEST = 1e-30  # scales below count as none: their inverses leave the range of float32
STEPS_PER_OCTAVE = {4: 4, 8: 16}  # by the bits of a code


@cache
def scale_table(bits: int) -> Floats:
    """(2**bits,) scales as shares of the largest."""
    top = (1 << bits) - 1
    return np.array([0.0, *(2.0 ** ((code - top) / STEPS_PER_OCTAVE[bits]) for code in range(1, top + 1))], np.float32)


def nearest_codes(scales: Floats, largest: Wide, bits: int) -> Codes:
    """Of (rows, n) scales, each at most the largest of its row."""
    table = scale_table(bits)
    return _codes((table[:-1] + table[1:]) / np.float32(2), scales, largest)


def codes_above(scales: Floats, largest: Wide, bits: int) -> Codes:
    """The least scale that is not below each of (rows, n)."""
    return _codes(scale_table(bits)[:-1], scales, largest)


def scales_of(codes: Codes, largest: Wide, bits: int) -> Floats:
    """(rows, n) scales."""
    scales: Floats = scale_table(bits)[codes] * narrow(largest)[:, None]
    return scales


def inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 for the step of a constant group or the norm of a zero vector."""
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale > SMALLEST)


def _codes(edges: Floats, scales: Floats, largest: Wide) -> Codes:
    return np.searchsorted(edges, scales * inverse(narrow(largest))[:, None]).astype(np.uint8)
