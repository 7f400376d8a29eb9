"""Lanes: sixteen float32 numbers as one value of a kernel; vectorized 2^x and maximum.

LLVM maps it to the processor's registers: one with AVX-512, two with AVX2, four with NEON.
Lane i of a result depends on lane i of the operands alone, so a kernel with one row a lane
treats all rows alike.

`exp2` is the same polynomial for a scalar, vectorized in loops unlike the library's exp; `largest`
compares floats as integers, since LLVM vectorizes a maximum of floats only under the
assumption that there is no NaN.
"""

import operator
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.simd.arrays import INT16, INT32, element_pointer

NUM_LANES = 16
FLOATS = ir.VectorType(ir.FloatType(), NUM_LANES)
WORDS = ir.VectorType(INT32, NUM_LANES)
# 1.5 * 2^23: the sum with a number of up to 2^22 is that number, rounded to the nearest integer.
TO_INTEGER = np.float32(12_582_912.0)


class LanesType(types.Type):  # type: ignore[misc]
    """The Numba type of sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes_type = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, of_type: Any) -> None:
        super().__init__(manager, of_type, FLOATS)


def _call(builder: Any, name: str, arguments: Any) -> Any:
    """Call the LLVM intrinsic of that name for sixteen floats."""
    function_type = ir.FunctionType(FLOATS, [FLOATS] * len(arguments))
    full_name = f"llvm.{name}.v{NUM_LANES}f32"
    function = cgutils.get_or_insert_function(builder.module, function_type, full_name)
    return builder.call(function, arguments)


@intrinsic
def load(typing_context: Any, array: Any, offset: Any) -> Any:
    """Load sixteen numbers of a float32 C array from flat index `offset` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        pointer = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        return builder.load(builder.bitcast(pointer, FLOATS.as_pointer()), align=4)

    return lanes_type(array, offset), generate


@intrinsic
def store(typing_context: Any, array: Any, offset: Any, value: Any) -> Any:
    """Store sixteen numbers to a float32 C array from flat index `offset` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        pointer = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        builder.store(arguments[2], builder.bitcast(pointer, FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, offset, value), generate


@intrinsic
def splat(typing_context: Any, value: Any) -> Any:
    """Return one float32 number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = context.cast(builder, arguments[0], signature.args[0], types.float32)
        return spread(builder, number)

    return lanes_type(value), generate


@intrinsic
def fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return `a * b + c`, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, "fma", arguments)

    return lanes_type(a, b, c), generate


@intrinsic
def sum_of_lanes(typing_context: Any, a: Any) -> Any:
    """Return the sum of all lanes, adding halves to halves: one order on every processor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total = arguments[0]
        for step in (8, 4, 2, 1):
            other = [(lane + step) % NUM_LANES for lane in range(NUM_LANES)]
            moved = builder.shuffle_vector(total, total, ir.Constant(WORDS, other))
            total = builder.fadd(total, moved)
        return builder.extract_element(total, INT32(0))

    return types.float32(a), generate


def spread(builder: Any, value: Any, vector: Any = FLOATS) -> Any:
    """Return a number in all lanes of a vector type."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
    order = ir.Constant(ir.VectorType(INT32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, one, order)


def lane_sums(builder: Any, vectors: list[Any], add: Any) -> Any:
    """Return a vector of which lane `i * m / n` is the sum of all m lanes of vector i.

    vectors: n of m lanes, both powers of two, n up to m. add: of the builder. Halves are added to
    halves, as in `sum_of_lanes`, but those of two vectors together.
    """
    lanes = vectors[0].type.count
    orders = ir.VectorType(INT32, lanes)
    step = lanes
    while step > 1:
        step //= 2
        near = [i if not i & step else lanes + i - step for i in range(lanes)]
        far = [i + step if not i & step else lanes + i for i in range(lanes)]
        half = max(len(vectors) // 2, 1)
        vectors = [
            add(*(
                builder.shuffle_vector(vectors[i], vectors[-half + i], ir.Constant(orders, order))
                for order in (near, far)
            ))
            for i in range(half)
        ]  # fmt: skip
    return vectors[0]


@intrinsic
def store_sums(
    typing_context: Any,
    array: Any,
    place: Any,
    a: Any,
    b: Any,
    other_place: Any,
    c: Any,
    d: Any,
) -> Any:
    """Write the sums of all lanes of a and b from `place` on, those of c and d from `other_place`.

    Each has the bits of `sum_of_lanes`, by less than half the instructions. array: a C array of
    float32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        sums = lane_sums(builder, [arguments[i] for i in (2, 3, 5, 6)], builder.fadd)
        pair = ir.VectorType(ir.FloatType(), 2)
        for i, found in ((1, (0, 4)), (4, (8, 12))):
            lanes = ir.Constant(ir.VectorType(INT32, 2), found)
            pointer = element_pointer(
                context, builder, types_of[0], arguments[0], types_of[i], arguments[i]
            )
            own = builder.shuffle_vector(sums, sums, lanes)
            builder.store(own, builder.bitcast(pointer, pair.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, place, a, b, other_place, c, d), generate


@intrinsic
def larger(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the larger number of each lane; `b` where either is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return lanes_type(a, b), generate


@intrinsic
def smaller(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the smaller number of each lane; `b` where either is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return lanes_type(a, b), generate


@intrinsic
def where_less(typing_context: Any, a: Any, b: Any, this: Any, other: Any) -> Any:
    """Return `this` in the lanes where a < b, `other` elsewhere, also where either is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        less = builder.fcmp_ordered("<", arguments[0], arguments[1])
        return builder.select(less, arguments[2], arguments[3])

    return lanes_type(a, b, this, other), generate


@intrinsic
def any_less(typing_context: Any, a: Any, b: Any) -> Any:
    """Return True if a < b in any lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        less = builder.fcmp_ordered("<", *arguments)
        return builder.icmp_unsigned("!=", builder.bitcast(less, INT16), INT16(0))

    return types.boolean(a, b), generate


@intrinsic
def _power_of_two(typing_context: Any, shifted: Any) -> Any:
    """Return 2^n for whole n of -127 (which gives 0) to 127, given as `n + TO_INTEGER`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # The lowest bits of the sum are n; those above them leave the word.
        bits = builder.shl(builder.bitcast(arguments[0], WORDS), ir.Constant(WORDS, [23] * 16))
        one = ir.Constant(WORDS, [127 << 23] * NUM_LANES)
        return builder.bitcast(builder.add(bits, one), FLOATS)

    return lanes_type(shifted), generate


@inlined(fastmath=EXACT)
def exp2_lanes(x: Any) -> Any:
    """Return 2^x in each lane for x up to 127; relative error 2e-7, 0 from -127 down, NaN for NaN.

    As `exp2`, but x is rounded to an integer by adding a large number.
    """
    x = larger(splat(LOW), x)
    shifted = x + splat(TO_INTEGER)
    f = x - (shifted - splat(TO_INTEGER))
    p = fused(f, splat(C6), splat(C5))
    p = fused(f, p, splat(C4))
    p = fused(f, p, splat(C3))
    p = fused(f, p, splat(C2))
    p = fused(f, p, splat(C1))
    p = fused(f, p, splat(np.float32(1.0)))
    return p * _power_of_two(shifted)


@inlined(fastmath=EXACT)
def exp2_lanes_for_bfloat16(x: Any) -> Any:
    """Return `exp2_lanes` with a relative error of 3e-6: far below that of rounding to bfloat16.

    A polynomial with two terms fewer: minimax fit of 2^f over |f| <= 1/2, 2^0 being exact.
    """
    x = larger(splat(LOW), x)
    shifted = x + splat(TO_INTEGER)
    f = x - (shifted - splat(TO_INTEGER))
    p = fused(f, splat(np.float32(0.009582852944731712)), splat(np.float32(0.055906426161527634)))
    p = fused(f, p, splat(np.float32(0.24024099111557007)))
    p = fused(f, p, splat(np.float32(0.6931241750717163)))
    p = fused(f, p, splat(np.float32(1.0)))
    return p * _power_of_two(shifted)


def _operator(name: str) -> Any:
    """Return an intrinsic for one of LLVM's binary instructions."""

    @intrinsic
    def apply(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, name)(*arguments)

        return lanes_type(a, b), generate

    return apply


_add, _subtract, _multiply, _divide = map(_operator, ("fadd", "fsub", "fmul", "fdiv"))


def _are_lanes(a: Any, b: Any) -> bool:
    return isinstance(a, LanesType) and isinstance(b, LanesType)


@overload(operator.add, strict=False)
def _overload_add(a: Any, b: Any) -> Any:
    return (lambda a, b: _add(a, b)) if _are_lanes(a, b) else None


@overload(operator.sub, strict=False)
def _overload_subtract(a: Any, b: Any) -> Any:
    return (lambda a, b: _subtract(a, b)) if _are_lanes(a, b) else None


@overload(operator.mul, strict=False)
def _overload_multiply(a: Any, b: Any) -> Any:
    return (lambda a, b: _multiply(a, b)) if _are_lanes(a, b) else None


@overload(operator.truediv, strict=False)
def _overload_divide(a: Any, b: Any) -> Any:
    return (lambda a, b: _divide(a, b)) if _are_lanes(a, b) else None


LOG2_E = np.float32(1.4426950408889634)

# Weighted least squares fit of 2^f - 1 over |f| <= 1/2; relative error 2e-9 before rounding.
C1 = np.float32(0.6931471824645996)
C2 = np.float32(0.24022647738456726)
C3 = np.float32(0.055503323674201965)
C4 = np.float32(0.009618437848985195)
C5 = np.float32(0.0013398878509178758)
C6 = np.float32(0.00015353357593994588)
LOW = np.float32(-127.0)
HIGH = np.float32(127.0)


@inlined()
def exp2(x: Any) -> Any:
    """Return 2^x for a float32 x; relative error 2e-7, 0 from -127 down, 2^127 from 127 up.

    NaN stays NaN.
    """
    x = LOW if x < LOW else x
    x = HIGH if x > HIGH else x
    whole = np.floor(x + np.float32(0.5))
    f = x - whole
    p = C5 + f * C6
    p = C4 + f * p
    p = C3 + f * p
    p = C2 + f * p
    p = C1 + f * p
    p = np.float32(1.0) + f * p
    exponent = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))  # 0 at -127: gives 0.0
    return p * exponent.view(np.float32)


_DIGITS = np.int32(0x7FFFFFFF)


@inlined()
def largest(values: Any) -> Any:
    """Return the largest of at least one float32 value; for NaN see below.

    Compared as integers in the same order (negative floats with flipped digits): LLVM
    vectorizes an integer maximum, but a float maximum only under the assumption of no NaN.
    A positive NaN counts as larger, a negative one as smaller than every number.
    """
    peak = np.int32(-0x80000000)
    for i in range(values.shape[0]):
        bits = np.float32(values[i]).view(np.int32)
        order = np.int32(bits ^ (np.int32(bits >> np.int32(31)) & _DIGITS))
        peak = max(peak, order)
    return np.int32(peak ^ (np.int32(peak >> np.int32(31)) & _DIGITS)).view(np.float32)
