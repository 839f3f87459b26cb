"""Instructions that numba does not make by itself, written for LLVM: float16, and the Hadamard transform in registers.

LLVM fits vectors of any length to any processor, so nothing here is of one. Importing this needs numba.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

LANES = 16
LARGEST_RUN = 256  # what registers hold

_Vector = ir.VectorType(ir.FloatType(), LANES)


@intrinsic
def half_bits(typing_context, value):
    """float32 to the bits of the nearest float16, by the processor: numba knows no float16 outside GPUs."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def half_value(typing_context, bits):
    """The opposite."""

    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def wide_value(typing_context, bits):
    """See `packing.narrow`."""

    def generate(context, builder, signature, arguments):
        upper = builder.shl(builder.zext(arguments[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(upper, ir.FloatType())

    return types.float32(types.uint16), generate


def _turn_of(width):
    """transform(tile, start): of the `width` elements of a contiguous float32 array from `start` on, in place."""

    @intrinsic
    def transform(typing_context, tile, start):
        def generate(context, builder, signature, arguments):
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            first = builder.gep(array.data, [arguments[1]])
            places = [
                builder.bitcast(builder.gep(first, [ir.Constant(ir.IntType(64), place)]), _Vector.as_pointer())
                for place in range(0, width, LANES)
            ]
            vectors = _transformed(builder, [builder.load(place, align=4) for place in places])
            for vector, place in zip(vectors, places, strict=True):
                builder.store(vector, place, align=4)
            return context.get_dummy_value()

        return types.void(tile, types.intp), generate

    return transform


def _transformed(builder, vectors):
    """The widest steps first, as `rotation.hadamard` takes them."""
    vectors, stride = list(vectors), len(vectors) // 2
    while stride:
        for i in (i for i in range(len(vectors)) if not i & stride):
            one, two = vectors[i], vectors[i + stride]
            vectors[i], vectors[i + stride] = builder.fadd(one, two), builder.fsub(one, two)
        stride //= 2
    for stride in (8, 4, 2, 1):
        vectors = [_step_within(builder, vector, stride) for vector in vectors]
    return vectors


def _step_within(builder, vector, stride):
    """Neighbours at this distance to their sum and their difference; a product with 1 or -1 is exact, fused or not."""
    swapped = builder.shuffle_vector(
        vector, ir.Constant(_Vector, ir.Undefined), _lanes(i ^ stride for i in range(LANES))
    )
    signs = ir.Constant(_Vector, [-1.0 if i & stride else 1.0 for i in range(LANES)])
    return builder.fadd(builder.fmul(vector, signs, flags=['contract']), swapped, flags=['contract'])


def _lanes(numbers):
    return ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(numbers))


turn_16, turn_32, turn_64, turn_128, turn_256 = (_turn_of(width) for width in (16, 32, 64, 128, LARGEST_RUN))
