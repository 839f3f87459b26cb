"""The rotation that makes every vector look Gaussian, and the best scalar codebook for a Gaussian.

A Hadamard transform with random signs spreads outlier channels over all channels. The signs follow from the length of
the vectors alone, so that every process decodes what another one wrote. Lloyd 1982, Max 1960; Ashkboos et al. 2024
(QuaRot), Zandieh et al. 2025 (TurboQuant).
"""

from functools import cache
import hashlib
from itertools import pairwise
import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

NUM_ITERATIONS = 2000
LEVEL_STEP = 2.0**-12  # levels are rounded to it, so that no machine's last digit changes the stored format


@cache
def signs(length: int) -> Floats:
    """(length,) of +1 and -1."""
    digest = hashlib.shake_256(f'kv_agent_ros/rotation/1/{length}'.encode()).digest(-(-length // 8))
    bits = np.unpackbits(np.frombuffer(digest, np.uint8))[:length]
    return (1.0 - 2.0 * bits).astype(np.float32)


def rotation_width(length: int) -> int:
    """The largest power of two that divides `length`: the transform works on runs of it."""
    return length & -length


def hadamard(vectors: Floats) -> Floats:
    """The Hadamard transform of each run of `rotation_width` elements of the last axis, not normalised."""
    width = rotation_width(vectors.shape[-1])
    result = vectors.reshape(*vectors.shape[:-1], -1, width)
    half = width // 2
    for _ in range(width.bit_length() - 1):
        first, second = result[..., :half], result[..., half:]
        result = np.stack((first + second, first - second), axis=-1).reshape(result.shape)
    return result.reshape(vectors.shape)


@cache
def codebook(bits: int) -> Floats:
    """(2**bits,) ascending levels with the least mean square error for a standard Gaussian."""
    normal = NormalDist()
    num_levels = 1 << bits
    # Panter and Dite's density, the limit for many levels, is a good start for few.
    levels = [math.sqrt(3) * normal.inv_cdf((i + 0.5) / num_levels) for i in range(num_levels)]
    for _ in range(NUM_ITERATIONS):
        edges = [-math.inf, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]
        levels = [_mean(normal, low, high) for low, high in pairwise(edges)]
    return np.round(np.array(levels) / LEVEL_STEP).astype(np.float32) * np.float32(LEVEL_STEP)


@cache
def thresholds(bits: int) -> Floats:
    """(2**bits - 1,) edges between the levels of the codebook."""
    levels = codebook(bits)
    return (levels[:-1] + levels[1:]) / np.float32(2)


def _mean(normal: NormalDist, low: float, high: float) -> float:
    """The mean of a standard Gaussian between two edges."""
    return (_density(normal, low) - _density(normal, high)) / (normal.cdf(high) - normal.cdf(low))


def _density(normal: NormalDist, x: float) -> float:
    return 0.0 if math.isinf(x) else normal.pdf(x)
