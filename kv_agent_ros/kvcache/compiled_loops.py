"""The loops of quantisation, compiled by numba: importing this needs it. Plain Python, element by element, so no types.

Vectors lie in one flat row of them, (vectors, length). ABREAST of them are turned on their side at a time: neighbours
in memory are then the same element of neighbouring vectors, and every step of the transform is long runs of additions,
which the compiler makes vector instructions of. No innermost loop has index arithmetic.
"""

import platform

from llvmlite import binding, ir
import numba
from numba.core import types
from numba.extending import intrinsic, overload
import numpy as np

ABREAST = 32
LARGEST_HALF = np.float32(65504)
CAN_HALVE = platform.machine() in ('aarch64', 'arm64') or bool(binding.get_host_cpu_features().get('f16c'))


def _compiled(loop):
    """A later process reads numba's cache; where no folder for it can be written, every process compiles."""
    try:
        return numba.njit(cache=True, nogil=True, error_model='numpy')(loop)
    except RuntimeError:
        return numba.njit(nogil=True, error_model='numpy')(loop)


@intrinsic
def _half_bits(typing_context, value):
    """float32 to the bits of the nearest float16, by the processor: numba knows no float16 outside GPUs."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _half_value(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


def _stored(value, line):
    """The value as `line` has its elements: float32, or the bits of float16."""


@overload(_stored)
def _typed_stored(value, line):
    if line.dtype == types.uint16:
        return lambda value, line: _half_bits(min(max(value, -LARGEST_HALF), LARGEST_HALF))
    return lambda value, line: value


@_compiled
def _transform(tile, lanes, width):
    """Of runs of `width` rows, `lanes` long each, of a flat tile; two steps at a time."""
    run = width * lanes // 2
    while run > lanes:
        part = run // 2
        for start in range(0, len(tile), 2 * run):
            one, two = tile[start : start + part], tile[start + part : start + run]
            three, four = tile[start + run : start + run + part], tile[start + run + part : start + 2 * run]
            for i in range(part):
                a, b = one[i] + three[i], two[i] + four[i]
                c, d = one[i] - three[i], two[i] - four[i]
                one[i] = a + b
                two[i] = a - b
                three[i] = c + d
                four[i] = c - d
        run //= 4
    if run == lanes:
        for start in range(0, len(tile), 2 * run):
            one, two = tile[start : start + run], tile[start + run : start + 2 * run]
            for i in range(run):
                a, b = one[i], two[i]
                one[i] = a + b
                two[i] = a - b


@_compiled
def turn(vectors, signs, width, turned):
    num_vectors, length = vectors.shape
    flat_tile = np.zeros(length * ABREAST, np.float32)
    tile = flat_tile.reshape(length, ABREAST)
    for first in range(0, num_vectors, ABREAST):
        num = min(ABREAST, num_vectors - first)
        for vector in range(num):
            for i in range(length):
                tile[i, vector] = vectors[first + vector, i] * signs[i]
        _transform(flat_tile, ABREAST, width)
        for vector in range(num):
            for i in range(length):
                turned[first + vector, i] = tile[i, vector]


@_compiled
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


@_compiled
def gain(packed, table, reference, bits, found):
    rows, tokens = found.shape
    per_byte, mask = 8 // bits, (1 << bits) - 1
    for row in range(rows):
        for token in range(tokens):
            code = (packed[row, token // per_byte] >> (bits * (token % per_byte))) & mask
            found[row, token] = table[code] * reference[row]


@_compiled
def look_up(packed, wide_levels, width, gain, signs, centre, out):
    """A byte brings all its levels, which it has through the first steps already, as one wide number."""
    num_vectors, size = packed.shape
    length, tokens = out.shape[1], num_vectors // centre.shape[0]
    per_byte = length // size
    flat_tile = np.zeros(length * ABREAST, np.float32)
    tile = flat_tile.view(wide_levels.dtype).reshape(size, ABREAST)
    values = np.empty(length, np.float32)
    wide_values = values.view(wide_levels.dtype)
    for first in range(0, num_vectors, ABREAST):
        num = min(ABREAST, num_vectors - first)
        for vector in range(num):
            for i in range(size):
                tile[i, vector] = wide_levels[packed[first + vector, i]]
        _transform(flat_tile, ABREAST * per_byte, width // per_byte)
        for vector in range(num):
            for i in range(size):
                wide_values[i] = tile[i, vector]
            line, middle = out[first + vector], centre[(first + vector) // tokens]
            factor = gain[first + vector]
            for i in range(length):
                line[i] = _stored(values[i] * factor * signs[i] + middle[i], line)


@_compiled
def scale(packed, wide_codes, low, step, token_group, channel_group, out):
    rows, tokens, length = out.shape
    size, num_parts = packed.shape[2], low.shape[2]
    wide_line = np.empty(size, wide_codes.dtype)
    codes = wide_line.view(np.float32)
    for row in range(rows):
        for token in range(tokens):
            for i in range(size):
                wide_line[i] = wide_codes[packed[row, token, i]]
            lows, steps = low[row, token // token_group], step[row, token // token_group]
            line = out[row, token]
            if channel_group == 1:
                for i in range(length):
                    line[i] = _stored(codes[i] * steps[i] + lows[i], line)
            else:
                for part in range(num_parts):
                    first, end = part * channel_group, min(length, (part + 1) * channel_group)
                    factor, offset = steps[part], lows[part]
                    run, source = line[first:end], codes[first:end]
                    for i in range(end - first):
                        run[i] = _stored(source[i] * factor + offset, run)


@_compiled
def halve(values, halves):
    for i in range(len(values)):
        halves[i] = _stored(values[i], halves)


@_compiled
def widen(halves, values):
    for i in range(len(halves)):
        values[i] = _half_value(halves[i])
