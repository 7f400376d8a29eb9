"""The two products of decode attention, in float32 and, for int8 codes, in integers.

In float32: keys and values of any format, four at a time, for two query heads, so that a number is
read and widened once for both and the sums over lanes of four keys are computed together. The
grouping changes no bit.

In integers: queries, and the weights of a partition, are rounded to 16 bits with a factor each:
finer than bfloat16 for all but negligible numbers, at a third of the instructions of float32. Sums
of int16 times int8 are exact, in any order and on any processor. The intrinsics are written so that
LLVM selects `vpdpwssd` (AVX512-VNNI) or `vpmaddwd` (AVX2), which multiply pairs of int16 and add
both products. Arrays are C arrays; offsets and strides count their elements. Sums of up to 512
products of the largest numbers fit; callers stay below.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import EXACT, inlined
from pagedrun.kernels.cpu.kv_cache import quantize
from pagedrun.kernels.cpu.simd.arrays import INT8, INT16, INT32, element_pointer, prefetch_row
from pagedrun.kernels.cpu.simd.lanes import (
    NUM_LANES,
    WORDS,
    fused,
    lane_sums,
    load,
    splat,
    store,
    store_sums,
    sum_of_lanes,
)
from pagedrun.kernels.cpu.simd.words import read_lanes
from pagedrun.kernels.kernel_set import has_features
from pagedrun.kernels.partition import PARTITION_TOKENS


@inlined()
def score_floats(
    query: Any,
    key_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    scores: Any,
) -> None:
    """Write the products of the queries with keys low .. high - 1 to the columns from 0 on."""
    block_size = key_cache.shape[2]
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run = min(block_size - offset, high - position)
        keys = key_cache[block, kv_head, offset : offset + run]
        fours = run - run % 4
        for i in range(0, fours, 4):
            for ahead in range(offset + i, offset + i + 4):
                prefetch_row(key_cache, next_block, kv_head, ahead)
            _multiply_four(query, keys, i, position - low + i, scores)
        for i in range(fours, run):
            _multiply_one(query, keys[i], position - low + i, scores)
        position += run


@inlined(fastmath=EXACT)
def _multiply_four(query: Any, keys: Any, first: Any, column: Any, scores: Any) -> None:
    """Write the products of four keys [run, head_dim] with the queries.

    Two by two: with more than four sums, the registers of AVX2 do not suffice.
    """
    group, head_dim = query.shape
    whole = head_dim - head_dim % NUM_LANES
    width, nothing = scores.shape[1], np.float32(0.0)
    for g in range(0, group - 1, 2):
        q, r, place = g * head_dim, (g + 1) * head_dim, g * width + column
        for i in range(0, 4, 2):
            one, two = (first + i) * head_dim, (first + i + 1) * head_dim
            s0, s1, t0, t1 = splat(nothing), splat(nothing), splat(nothing), splat(nothing)
            for d in range(0, whole, NUM_LANES):
                k0, k1 = read_lanes(keys, one + d), read_lanes(keys, two + d)
                numbers, others = load(query, q + d), load(query, r + d)
                s0, s1 = fused(numbers, k0, s0), fused(numbers, k1, s1)
                t0, t1 = fused(others, k0, t0), fused(others, k1, t1)
            store_sums(scores, place + i, s0, s1, place + width + i, t0, t1)
    if group % 2:
        q, place, start = (group - 1) * head_dim, (group - 1) * width + column, first * head_dim
        s0, s1, s2, s3 = splat(nothing), splat(nothing), splat(nothing), splat(nothing)
        for d in range(0, whole, NUM_LANES):
            numbers, key = load(query, q + d), start + d
            s0 = fused(numbers, read_lanes(keys, key), s0)
            s1 = fused(numbers, read_lanes(keys, key + head_dim), s1)
            s2 = fused(numbers, read_lanes(keys, key + 2 * head_dim), s2)
            s3 = fused(numbers, read_lanes(keys, key + 3 * head_dim), s3)
        store_sums(scores, place, s0, s1, place + 2, s2, s3)
    for i in range(4):
        _add_tail(query, keys[first + i], whole, column + i, scores)


@inlined(fastmath=EXACT)
def _multiply_one(query: Any, key: Any, column: Any, scores: Any) -> None:
    """Write the products of one key with the queries, with the bits of `_multiply_four`."""
    group, head_dim = query.shape
    whole = head_dim - head_dim % NUM_LANES
    for g in range(group):
        total = splat(np.float32(0.0))
        for d in range(0, whole, NUM_LANES):
            total = fused(load(query, g * head_dim + d), read_lanes(key, d), total)
        scores[g, column] = sum_of_lanes(total)
    _add_tail(query, key, whole, column, scores)


@inlined(fastmath=EXACT)
def _add_tail(query: Any, key: Any, start: Any, column: Any, scores: Any) -> None:
    """Add the products of the elements after the last whole lanes."""
    for d in range(start, query.shape[1]):
        number = to_float32(key[d])
        for g in range(query.shape[0]):
            scores[g, column] += query[g, d] * number


@inlined()
def add_floats(
    weights: Any,
    value_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    partial: Any,
) -> None:
    """Add weight times value of low .. high - 1 to `partial`, in ascending order of position."""
    block_size = value_cache.shape[2]
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run = min(block_size - offset, high - position)
        fours = run - run % 4
        for i in range(0, fours, 4):
            for ahead in range(offset + i, offset + i + 4):
                prefetch_row(value_cache, next_block, kv_head, ahead)
            values = value_cache[block, kv_head, offset + i : offset + i + 4]
            _add_four(weights, position - low + i, values, partial)
        for i in range(fours, run):
            value = value_cache[block, kv_head, offset + i]
            _add_one(weights, position - low + i, value, partial)
        position += run


@inlined(fastmath=EXACT)
def _add_four(weights: Any, column: Any, values: Any, partial: Any) -> None:
    """Add four values [4, head_dim] times their weights, for two query heads at a time."""
    group, head_dim = partial.shape
    whole = head_dim - head_dim % NUM_LANES
    for g in range(0, group, 2):
        other = min(g + 1, group - 1)  # a single last head is added once and written twice
        a0, a1 = splat(weights[g, column]), splat(weights[g, column + 1])
        a2, a3 = splat(weights[g, column + 2]), splat(weights[g, column + 3])
        b0, b1 = splat(weights[other, column]), splat(weights[other, column + 1])
        b2, b3 = splat(weights[other, column + 2]), splat(weights[other, column + 3])
        for d in range(0, whole, NUM_LANES):
            v0, v1 = read_lanes(values, d), read_lanes(values, head_dim + d)
            v2, v3 = read_lanes(values, 2 * head_dim + d), read_lanes(values, 3 * head_dim + d)
            total = load(partial, g * head_dim + d)
            second = load(partial, other * head_dim + d)
            total = fused(a3, v3, fused(a2, v2, fused(a1, v1, fused(a0, v0, total))))
            second = fused(b3, v3, fused(b2, v2, fused(b1, v1, fused(b0, v0, second))))
            store(partial, g * head_dim + d, total)
            store(partial, other * head_dim + d, second)
    for g in range(group):
        for i in range(4):
            for d in range(whole, head_dim):
                partial[g, d] += weights[g, column + i] * to_float32(values[i, d])


@inlined(fastmath=EXACT)
def _add_one(weights: Any, column: Any, value: Any, partial: Any) -> None:
    """Add one value times its weights, with the bits of `_add_four`."""
    group, head_dim = partial.shape
    whole = head_dim - head_dim % NUM_LANES
    for g in range(group):
        weight = weights[g, column]
        for d in range(0, whole, NUM_LANES):
            place = g * head_dim + d
            total = fused(splat(weight), read_lanes(value, d), load(partial, place))
            store(partial, place, total)
        for d in range(whole, head_dim):
            partial[g, d] += weight * to_float32(value[d])


# With 256-bit vectors, the sums of four keys and two queries, in eight lanes, take half of the
# registers.
_KEYS, _SUM_LANES = (8, NUM_LANES) if has_features("avx512f") else (4, NUM_LANES // 2)
_SUMS = ir.VectorType(INT32, _SUM_LANES)

STEP = 32  # numbers of a vector of int16
_BYTES, _HALVES = ir.VectorType(INT8, STEP), ir.VectorType(INT16, STEP)
_WIDE = ir.VectorType(INT32, STEP)


def _addresses(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Return two functions: the address of an argument's element, and an argument as an integer."""

    def whole(i: int) -> Any:
        return context.cast(builder, arguments[i], kinds[i], types.intp)

    def at(array: int, place: Any, target: Any) -> Any:
        pointer = element_pointer(
            context, builder, kinds[array], arguments[array], types.intp, place
        )
        return builder.bitcast(pointer, target.as_pointer())

    return at, whole


def _order(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(INT32, len(numbers)), numbers)


def _pair_sums(builder: Any, a: Any, b: Any) -> Any:
    """Return the sums of the products of each two neighbors: sixteen int32."""
    products = builder.mul(builder.sext(a, _WIDE), builder.sext(b, _WIDE))
    even, odd = (
        builder.shuffle_vector(products, products, _order(list(range(first, STEP, 2))))
        for first in (0, 1)
    )
    return builder.add(even, odd)


def _zeros() -> Any:
    return ir.Constant(WORDS, [0] * NUM_LANES)


def key_sums(num_keys: int) -> Any:
    """Return an intrinsic for the products of `num_keys` keys with two queries."""

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
        """Write `sums[place + i]`, key i times the query, and the sums of the other query.

        queries: int16, with two queries at `query` and `other_query`. keys: int8, the first at
        `key`, each next one `stride` further. num_steps: their length in units of `STEP`. sums:
        int32.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            at, whole = _addresses(context, builder, signature.args, arguments)
            nothing = ir.Constant(_SUMS, [0] * _SUM_LANES)
            totals = [cgutils.alloca_once_value(builder, nothing) for _ in range(2 * num_keys)]
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
                        for first in range(0, NUM_LANES, _SUM_LANES):
                            order = _order(list(range(first, first + _SUM_LANES)))
                            own = builder.shuffle_vector(added, added, order)
                            builder.store(builder.add(builder.load(total), own), total)
            results = [builder.load(total) for total in totals]
            lanes, apart = lane_sums(builder, results, builder.add), _SUM_LANES // len(results)
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


_some_keys, _one_key = key_sums(_KEYS), key_sums(1)


class Integers(NamedTuple):
    """Memory of one row's query heads.

    queries: [group, head_dim] int16, with `factors` [group] float32. weights: [group, partition]
    int16. scores: [group, partition] int32. totals: [group, head_dim] int32.
    """

    queries: Any
    factors: Any
    weights: Any
    scores: Any
    totals: Any


def integers_for(q: Any, query: Any, cache: Any) -> Any:
    """Inside kernels: return the queries [group, head_dim] as integers, None for float32 products.

    q: the source array of `query`, which is float32. 16 bits lose no significant precision of
    bfloat16; they would of float32.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(integers_for, strict=False)
def _overload_integers_for(q: Any, query: Any, cache: Any) -> Any:
    if q.dtype == types.uint16 and cache.dtype == types.int8:
        return lambda q, query, cache: _rounded(query)
    return lambda q, query, cache: None


@inlined()
def _rounded(query: Any) -> Any:
    group, head_dim = query.shape
    queries, factors = np.empty((group, head_dim), np.int16), np.empty(group, np.float32)
    for g in range(group):
        factors[g] = quantize(query[g], queries[g])
    return Integers(
        queries,
        factors,
        np.empty((group, PARTITION_TOKENS), np.int16),
        np.empty((group, PARTITION_TOKENS), np.int32),
        np.empty((group, head_dim), np.int32),
    )


@inlined()
def score_integers(
    integers: Any,
    key_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    scores: Any,
) -> None:
    """Write the products of the queries with keys low .. high - 1 to the columns from 0 on."""
    queries, factors, _, sums, _ = integers
    group, head_dim = queries.shape
    block_size, num_steps = key_cache.shape[2], head_dim // STEP
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run, column = min(block_size - offset, high - position), position - low
        keys = key_cache[block, kv_head, offset : offset + run]
        whole = run - run % _KEYS
        for g in range(0, group, 2):
            other = min(g + 1, group - 1)
            one, two = g * PARTITION_TOKENS + column, other * PARTITION_TOKENS + column
            query, second = g * head_dim, other * head_dim
            for i in range(0, whole, _KEYS):
                for ahead in range(offset + i, offset + i + _KEYS if g == 0 else 0):
                    prefetch_row(key_cache, next_block, kv_head, ahead)
                _some_keys(
                    queries, query, second, keys, i * head_dim, head_dim, num_steps,
                    sums, one + i, two + i,
                )  # fmt: skip
            for i in range(whole, run):
                _one_key(
                    queries, query, second, keys, i * head_dim, head_dim, num_steps,
                    sums, one + i, two + i,
                )  # fmt: skip
        for d in range(num_steps * STEP, head_dim):
            for g in range(group):
                for i in range(run):
                    sums[g, column + i] += np.int32(queries[g, d]) * np.int32(keys[i, d])
        position += run
    for g in range(group):
        row, total = scores[g], sums[g]
        for i in range(high - low):
            row[i] = np.float32(total[i]) * factors[g]


@inlined()
def add_integers(
    weights: Any,
    integers: Any,
    value_cache: Any,
    table: Any,
    kv_head: Any,
    low: Any,
    high: Any,
    last: Any,
    partial: Any,
) -> None:
    """Write the sum of weight times value of low .. high - 1 to `partial`."""
    _, _, rounded, _, sums = integers
    group, head_dim = sums.shape
    block_size, whole = value_cache.shape[2], head_dim // STEP * STEP
    factors = np.empty(group, np.float32)
    for g in range(group):
        factors[g] = quantize(weights[g, : high - low], rounded[g, : high - low])
        for d in range(head_dim):
            sums[g, d] = 0
    position = low
    while position < high:
        index, offset = position // block_size, position % block_size
        block = table[index]
        next_block = table[index + 1] if (index + 1) * block_size < last else block
        run, column = min(block_size - offset, high - position), position - low
        values = value_cache[block, kv_head, offset : offset + run]
        for g in range(0, group, 2):
            other = min(g + 1, group - 1)
            one, two = g * PARTITION_TOKENS + column, other * PARTITION_TOKENS + column
            for d in range(0, whole, STEP):
                stop = run * (d + STEP) // whole if g == 0 else 0
                for i in range(run * d // whole, stop):
                    prefetch_row(value_cache, next_block, kv_head, offset + i)
                add_value_sums(
                    rounded, one, two, values, d, head_dim, run // 2,
                    sums, g * head_dim + d, other * head_dim + d,
                )  # fmt: skip
        for g in range(group):
            if run % 2:
                weight = np.int32(rounded[g, column + run - 1])
                for d in range(whole):
                    sums[g, d] += weight * np.int32(values[run - 1, d])
            for d in range(whole, head_dim):
                for i in range(run):
                    sums[g, d] += np.int32(rounded[g, column + i]) * np.int32(values[i, d])
        position += run
    for g in range(group):
        row, total = partial[g], sums[g]
        for d in range(head_dim):
            row[d] = np.float32(total[d]) * factors[g]


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
    """Add values times weights to `STEP` sums from `place` on, for two rows of weights.

    weights: int16, one a value, from `weight` and `other_weight` on. values: int8, in pairs: from
    `value` on, then `stride` further. sums: int32; `place` and `other_place` may be equal.
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


# Two values of 32 int16 are interleaved as by `vpunpck`, in quarters of a vector: the first result
# has the first four numbers of each quarter of both, the second one the last four.
_FOURS = [[8 * quarter + 4 * half + i for quarter in range(4) for i in range(4)] for half in (0, 1)]
_MIXED = [_order([j for i in four for j in (i, STEP + i)]) for four in _FOURS]
_INTERLEAVED = [_order(four) for four in _FOURS]
_BACK = [(_FOURS[0] + _FOURS[1]).index(i) for i in range(STEP)]
_IN_ORDER = [_order(_BACK[:NUM_LANES]), _order(_BACK[NUM_LANES:])]


def _plus(builder: Any, number: Any, more: int) -> Any:
    return builder.add(number, number.type(more))


def _all_pairs(builder: Any, word: Any) -> Any:
    """Return a vector that repeats the two int16 of a word."""
    one = builder.insert_element(ir.Constant(WORDS, ir.Undefined), word, INT32(0))
    return builder.bitcast(builder.shuffle_vector(one, one, _zeros()), _HALVES)
