"""The loops of quantisation, compiled by numba: importing this needs it. Plain Python, element by element, so no types.

Vectors lie in one flat row of them, (vectors, length). Some are brought into a tile that stays in the processor's first
cache, and every loop then runs over the whole tile or over one vector, without index arithmetic.
"""

import platform

from llvmlite import binding
from numba.core import types
from numba.extending import overload
import numpy as np

from kv_agent_ros.kvcache.loop_cache import compiled
from kv_agent_ros.kvcache.vector_code import (
    LANES,
    LARGEST_RUN,
    half_bits,
    half_value,
    turn_16,
    turn_32,
    turn_64,
    turn_128,
    turn_256,
    wide_value,
)

TILE_ELEMENTS = 2048
LINE_BYTES = 64
LARGEST_HALF = np.float32(65504)
CAN_HALVE = platform.machine() in ('aarch64', 'arm64') or bool(binding.get_host_cpu_features().get('f16c'))


def _stored(value, line):
    """The value as `line` has its elements: float32, or the bits of float16."""


@overload(_stored)
def _typed_stored(value, line):
    if line.dtype == types.uint16:
        return lambda value, line: half_bits(min(max(value, -LARGEST_HALF), LARGEST_HALF))
    return lambda value, line: value


@compiled
def _transform(tile, width):
    """Of runs of `width` elements; the widest steps first."""
    run = width
    while run > LARGEST_RUN or 1 < run < LANES:
        half = run // 2
        for start in range(0, len(tile), run):
            one, two = tile[start : start + half], tile[start + half : start + run]
            for i in range(half):
                a, b = one[i], two[i]
                one[i] = a + b
                two[i] = a - b
        run = half
    if run == 16:
        for start in range(0, len(tile), 16):
            turn_16(tile, start)
    elif run == 32:
        for start in range(0, len(tile), 32):
            turn_32(tile, start)
    elif run == 64:
        for start in range(0, len(tile), 64):
            turn_64(tile, start)
    elif run == 128:
        for start in range(0, len(tile), 128):
            turn_128(tile, start)
    elif run == LARGEST_RUN:
        for start in range(0, len(tile), LARGEST_RUN):
            turn_256(tile, start)


@compiled
def _tile(like, num):
    """For `num` elements, from the start of a line of the cache on: no register is then filled from two lines."""
    elements = np.empty(num + LINE_BYTES // like.itemsize, like.dtype)
    start = -elements.ctypes.data % LINE_BYTES // like.itemsize
    return elements[start : start + num]


@compiled
def turn(vectors, signs, width, turned):
    num_vectors, length = vectors.shape
    for vector in range(num_vectors):
        line, source = turned[vector], vectors[vector]
        for i in range(length):
            line[i] = source[i] * signs[i]
        _transform(line, width)


@compiled
def choose(vectors, inverse, code_at, resolution, bits, packed):
    """The code of an element is found by its place on a grid on which every edge lies."""
    num_vectors, length = vectors.shape
    size, per_byte = packed.shape[1], 8 // bits
    highest = len(code_at) // 2
    limit, origin = np.float32(highest) / resolution, np.int32(highest)
    places = np.empty(length, np.int32)
    codes = np.zeros((size, per_byte), np.uint8)
    line = codes.reshape(size * per_byte)
    for vector in range(num_vectors):
        factor, source = inverse[vector], vectors[vector]
        for i in range(length):
            places[i] = np.int32(np.ceil(min(max(source[i] * factor, -limit), limit) * resolution)) + origin
        for i in range(length):
            line[i] = code_at[places[i]]
        for i in range(size):
            byte = 0
            for place in range(per_byte):
                byte |= codes[i, place] << (bits * place)
            packed[vector, i] = byte


@compiled
def _scale(packed, bits, place, table):
    first_bit = place * bits
    return table[(packed[first_bit >> 3] >> (first_bit & 7)) & ((1 << bits) - 1)]


@compiled
def scales(packed, bits, table, largest, found):
    rows, num = found.shape
    for row in range(rows):
        for place in range(num):
            found[row, place] = _scale(packed[row], bits, place, table) * wide_value(largest[row])


@compiled
def look_up(packed, wide_levels, width, norms, norm_bits, table, largest, signs, centre, places, out):
    """A byte brings all its levels as one wide number. Vector i becomes line places[i] of `out`."""
    num_vectors, size = packed.shape
    length, tokens = out.shape[1], num_vectors // len(largest)
    abreast = max(1, TILE_ELEMENTS // length)
    wide_tile = _tile(wide_levels, abreast * size)
    tile = wide_tile.view(np.float32)
    pitch = len(tile) // abreast
    codes = packed.reshape(num_vectors * size)
    row = token = 0
    for first in range(0, num_vectors, abreast):
        num = min(abreast, num_vectors - first)
        source = codes[first * size : (first + num) * size]
        for i in range(len(source)):
            wide_tile[i] = wide_levels[source[i]]
        _transform(tile[: num * pitch], width)
        for place in range(num):
            gain = _scale(norms[row], norm_bits, token, table) * wide_value(largest[row])
            line, middle, values = out[places[first + place]], centre[row], tile[place * pitch :]
            for i in range(length):
                line[i] = _stored(values[i] * gain * signs[i] + middle[i], line)
            token += 1
            if token == tokens:
                row, token = row + 1, 0


@compiled
def scale(packed, wide_codes, low, step, token_group, channel_group, places, out):
    rows, tokens, size = packed.shape
    length, num_parts = out.shape[1], low.shape[2]
    abreast = max(1, TILE_ELEMENTS // length)
    wide_tile = _tile(wide_codes, abreast * size)
    tile = wide_tile.view(np.float32)
    pitch = len(tile) // abreast
    for row in range(rows):
        codes = packed[row].reshape(tokens * size)
        group = left = 0
        for first in range(0, tokens, abreast):
            end = min(first + abreast, tokens)
            source = codes[first * size : end * size]
            for i in range(len(source)):
                wide_tile[i] = wide_codes[source[i]]
            for token in range(first, end):
                if left == 0:
                    group, left = token // token_group, token_group
                left -= 1
                lows, steps = low[row, group], step[row, group]
                line, values = out[places[row * tokens + token]], tile[(token - first) * pitch :]
                if channel_group == 1:
                    for i in range(length):
                        line[i] = _stored(values[i] * steps[i] + lows[i], line)
                else:
                    for part in range(num_parts):
                        start, stop = part * channel_group, min(length, (part + 1) * channel_group)
                        factor, offset = steps[part], lows[part]
                        run, among = line[start:stop], values[start:stop]
                        for i in range(stop - start):
                            run[i] = _stored(among[i] * factor + offset, run)


@compiled
def halve(values, halves):
    for i in range(len(values)):
        halves[i] = _stored(values[i], halves)


@compiled
def widen(halves, values):
    for i in range(len(halves)):
        values[i] = half_value(halves[i])
