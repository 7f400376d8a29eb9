"""Sums of int16 times int8 in int32: exact in any order, so they may be cut and grouped at will.

Written so that LLVM finds `vpdpwssd` (AVX512-VNNI) or `vpmaddwd` (AVX2) in it, which multiply pairs
of int16 and add both products. Arrays are C arrays, offsets and strides count their elements. Sums
of up to 512 products of the largest numbers fit; who calls sees to that.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedrun.kernels.cpu.simd.lanes import NUM_LANES, WORDS, lane_sums
from pagedrun.kernels.cpu.simd.pointer import INT8, INT16, INT32, element_pointer

STEP = 32  # numbers of a vector of int16
_BYTES, _HALVES = ir.VectorType(INT8, STEP), ir.VectorType(INT16, STEP)
_WIDE = ir.VectorType(INT32, STEP)


def key_sums(num_keys: int) -> Any:
    """Return an intrinsic for the products of `num_keys` keys, 8 or 1, with two queries."""

    @intrinsic
    def write_key_sums(
        typing_context: Any,
        queries: Any,
        query: Any,
        other_query: Any,
        keys: Any,
        key: Any,
        stride: Any,
        num_steps: Any,
        sums: Any,
        place: Any,
        other_place: Any,
    ) -> Any:
        """Write `sums[place + i]`, key i times the query, and those of the other query.

        queries: int16, of which two begin at `query` and `other_query`. keys: int8, the first at
        `key`, the next ones `stride` further each. num_steps: how many `STEP` numbers long all
        are. sums: int32.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            at, whole = _addresses(context, builder, signature.args, arguments)
            totals = [cgutils.alloca_once_value(builder, _zeros()) for _ in range(2 * num_keys)]
            with cgutils.for_range(builder, whole(6)) as loop:
                step = builder.mul(loop.index, whole(6).type(STEP))
                queries_now = [
                    builder.load(at(0, builder.add(whole(i), step), _HALVES), align=2)
                    for i in (1, 2)
                ]
                for row in range(num_keys):
                    start = builder.add(whole(4), builder.mul(whole(5), whole(5).type(row)))
                    codes = builder.load(at(3, builder.add(start, step), _BYTES), align=1)
                    for i, numbers in enumerate(queries_now):
                        total = totals[i * num_keys + row]
                        added = _pair_sums(builder, builder.sext(codes, _HALVES), numbers)
                        builder.store(builder.add(builder.load(total), added), total)
            results = [builder.load(total) for total in totals]
            lanes, apart = lane_sums(builder, results, builder.add), NUM_LANES // len(results)
            for i, start in enumerate((8, 9)):
                chosen = ir.Constant(
                    ir.VectorType(INT32, num_keys),
                    [(lane + i * num_keys) * apart for lane in range(num_keys)],
                )
                own = builder.shuffle_vector(lanes, lanes, chosen)
                builder.store(own, at(7, whole(start), own.type), align=4)
            return context.get_dummy_value()

        given = (
            queries, query, other_query, keys, key, stride, num_steps, sums, place, other_place
        )  # fmt: skip
        return types.void(*given), generate

    return write_key_sums


@intrinsic
def add_value_sums(
    typing_context: Any,
    weights: Any,
    weight: Any,
    other_weight: Any,
    values: Any,
    value: Any,
    stride: Any,
    num_pairs: Any,
    sums: Any,
    place: Any,
    other_place: Any,
) -> Any:
    """Add values times weights to `STEP` sums from `place` on, and with the others' weights.

    weights: int16, one a value, from `weight` and `other_weight` on. values: int8, of which an even
    number follows, two by two: those from `value` on, then `stride` further. sums: int32; both
    places may be the same.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, whole = _addresses(context, builder, signature.args, arguments)
        totals = []
        for start in (8, 9):
            halves = [
                builder.load(at(7, _plus(builder, whole(start), lane), WORDS), align=4)
                for lane in (0, NUM_LANES)
            ]
            totals += [
                cgutils.alloca_once_value(builder, builder.shuffle_vector(*halves, order))
                for order in _INTERLEAVED
            ]
        with cgutils.for_range(builder, whole(6)) as loop:
            token = builder.mul(loop.index, whole(6).type(2))
            start = builder.add(whole(4), builder.mul(token, whole(5)))
            pair = [
                builder.sext(builder.load(at(3, place, _BYTES), align=1), _HALVES)
                for place in (start, builder.add(start, whole(5)))
            ]
            mixed = [builder.shuffle_vector(*pair, order) for order in _MIXED]
            for i, first in enumerate((1, 2)):
                address = at(0, builder.add(whole(first), token), INT32)
                numbers = _all_pairs(builder, builder.load(address, align=2))
                for half, codes in enumerate(mixed):
                    total = totals[2 * i + half]
                    added = _pair_sums(builder, codes, numbers)
                    builder.store(builder.add(builder.load(total), added), total)
        for i, start in enumerate((8, 9)):
            results = [builder.load(total) for total in totals[2 * i : 2 * i + 2]]
            for lane, order in zip((0, NUM_LANES), _IN_ORDER, strict=True):
                own = builder.shuffle_vector(*results, order)
                address = at(7, _plus(builder, whole(start), lane), WORDS)
                builder.store(own, address, align=4)
        return context.get_dummy_value()

    given = (
        weights, weight, other_weight, values, value, stride, num_pairs, sums, place, other_place
    )  # fmt: skip
    return types.void(*given), generate


def _order(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(INT32, len(numbers)), numbers)


# Two values of 32 int16 are interleaved as processors do it, in quarters of a vector: the first
# result has the first four numbers of each quarter of both, the second one the last four.
_FOURS = [[8 * quarter + 4 * half + i for quarter in range(4) for i in range(4)] for half in (0, 1)]
_MIXED = [_order([j for i in four for j in (i, STEP + i)]) for four in _FOURS]
_INTERLEAVED = [_order(four) for four in _FOURS]
_BACK = [(_FOURS[0] + _FOURS[1]).index(i) for i in range(STEP)]
_IN_ORDER = [_order(_BACK[:NUM_LANES]), _order(_BACK[NUM_LANES:])]


def _addresses(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Return how to get the address of an argument's element, and an argument as a whole number."""

    def whole(i: int) -> Any:
        return context.cast(builder, arguments[i], kinds[i], types.intp)

    def at(array: int, place: Any, target: Any) -> Any:
        pointer = element_pointer(
            context, builder, kinds[array], arguments[array], types.intp, place
        )
        return builder.bitcast(pointer, target.as_pointer())

    return at, whole


def _plus(builder: Any, number: Any, more: int) -> Any:
    return builder.add(number, number.type(more))


def _zeros() -> Any:
    return ir.Constant(WORDS, [0] * NUM_LANES)


def _all_pairs(builder: Any, word: Any) -> Any:
    """Return the two int16 of a word, over and over."""
    one = builder.insert_element(ir.Constant(WORDS, ir.Undefined), word, INT32(0))
    return builder.bitcast(builder.shuffle_vector(one, one, _zeros()), _HALVES)


def _pair_sums(builder: Any, a: Any, b: Any) -> Any:
    """Return, for each two neighbours, the sum of their products: sixteen int32."""
    products = builder.mul(builder.sext(a, _WIDE), builder.sext(b, _WIDE))
    even, odd = (
        builder.shuffle_vector(products, products, _order(list(range(first, STEP, 2))))
        for first in (0, 1)
    )
    return builder.add(even, odd)
