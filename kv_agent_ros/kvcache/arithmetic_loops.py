"""What numba compiles of the arithmetic of quantisation; plain Python, element by element, so no types.

Vectors lie in one flat row of them, (vectors, length). A few at a time are turned on their side: neighbours in memory
are then the same element of neighbouring vectors, and every step of the transform is a long run of additions that the
compiler makes vector instructions of. `abreast` is how many; no innermost loop has index arithmetic.
"""

import numpy as np


def turn(vectors, width, abreast, turned):  # type: ignore[no-untyped-def]
    """The transform of each run of `width` elements."""
    num_vectors, length = vectors.shape
    tile = np.empty((length, abreast), np.float32)
    for first in range(0, num_vectors, abreast):
        num = min(abreast, num_vectors - first)
        for vector in range(num):
            for i in range(length):
                tile[i, vector] = vectors[first + vector, i]
        half = width // 2
        while half > 0:
            for start in range(0, length, 2 * half):
                for i in range(start, start + half):
                    one, two = tile[i], tile[i + half]
                    for j in range(abreast):
                        a, b = one[j], two[j]
                        one[j] = a + b
                        two[j] = a - b
            half //= 2
        for vector in range(num):
            for i in range(length):
                turned[first + vector, i] = tile[i, vector]


def choose(vectors, inverse, codes_of, resolution, bits, packed):  # type: ignore[no-untyped-def]
    """The code of an element is found by its place on a grid on which every edge lies."""
    num_vectors, length = vectors.shape
    size, per_byte = packed.shape[1], 8 // bits
    highest = len(codes_of) // 2
    limit = np.float32(highest) / resolution
    places = np.full(size * per_byte, highest, np.int32)
    for vector in range(num_vectors):
        factor, line = inverse[vector], vectors[vector]
        for i in range(length):
            places[i] = np.int32(np.ceil(min(max(line[i] * factor, -limit), limit) * resolution)) + highest
        for i in range(size):
            byte = 0
            for place in range(per_byte):
                if i * per_byte + place < length:
                    byte |= codes_of[places[i * per_byte + place]] << (bits * place)
            packed[vector, i] = byte


def look_up(packed, wide_levels, width, abreast, gain, signs, centre, out, wide_out):  # type: ignore[no-untyped-def]
    """A byte brings all its levels, which it has through the first steps already, as one wide number."""
    num_vectors, size = packed.shape
    length, tokens = out.shape[1], num_vectors // centre.shape[0]
    per_byte = length // size
    tile = np.empty((size, abreast * per_byte), np.float32)
    wide_tile = tile.view(wide_levels.dtype)
    for first in range(0, num_vectors, abreast):
        num = min(abreast, num_vectors - first)
        for vector in range(num):
            for i in range(size):
                wide_tile[i, vector] = wide_levels[packed[first + vector, i]]
        half = width // per_byte // 2
        while half > 0:
            for start in range(0, size, 2 * half):
                for i in range(start, start + half):
                    one, two = tile[i], tile[i + half]
                    for j in range(num * per_byte):
                        a, b = one[j], two[j]
                        one[j] = a + b
                        two[j] = a - b
            half //= 2
        for vector in range(num):
            for i in range(size):
                wide_out[first + vector, i] = wide_tile[i, vector]
            line, middle = out[first + vector], centre[(first + vector) // tokens]
            factor = gain[first + vector]
            for i in range(length):
                line[i] = line[i] * factor * signs[i] + middle[i]


def scale(packed, wide_codes, low, step, token_group, channel_group, out):  # type: ignore[no-untyped-def]
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
                    line[i] = codes[i] * steps[i] + lows[i]
            else:
                for part in range(num_parts):
                    first, end = part * channel_group, min(length, (part + 1) * channel_group)
                    factor, offset = steps[part], lows[part]
                    run, source = line[first:end], codes[first:end]
                    for i in range(end - first):
                        run[i] = source[i] * factor + offset


def halve(values, halves):  # type: ignore[no-untyped-def]
    """Float32 to the bits of float16, ties to even: numpy converts one element at a time."""
    shifted = np.empty(256, np.float32)
    small_bits = shifted.view(np.int32)
    for first in range(0, len(values), 256):
        part, to = values[first : first + 256], halves[first : first + 256]
        bits = part.view(np.int32)
        for i in range(len(part)):
            shifted[i] = abs(part[i]) + np.float32(0.5)  # brings the bits of a subnormal half into place, rounded
        for i in range(len(part)):
            sign = (bits[i] >> 16) & 0x8000
            size = min(bits[i] & 0x7FFFFFFF, 0x477FE000)  # 65504
            normal = (size + 0xFFF + ((size >> 13) & 1) - 0x38000000) >> 13
            small = small_bits[i] - 0x3F000000
            to[i] = sign | (small if size < 0x38800000 else normal)


def widen(halves, floats_of, values):  # type: ignore[no-untyped-def]
    """The bits of float16 to float32, by a table of all of them."""
    for i in range(len(halves)):
        values[i] = floats_of[halves[i]]
