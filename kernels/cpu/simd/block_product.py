"""Products of a few rows with 16 or 32 columns, accumulated in registers.

Each element of the result is one chain of sums over k in ascending order, for any number of rows
and columns, so any blocking gives the same bits. Three kinds, by the dtypes of the arrays:

- bfloat16 times words of two bfloat16: `vdpbf16ps` of AVX512-BF16, two terms at a time (Intel SDM
  vol. 2; denormal numbers count as zero). A step over k is a pair of A's elements;
- uint8 times words of four int8: `vpdpbusd` of AVX512-VNNI, four terms at a time, sums in int32. A
  step over k is four of A's elements;
- float32 times float32, bfloat16 or int8: `a * b + sum` rounded once, on any processor. With a
  fused multiply-add the chain has the same bits on every machine.
"""

from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedrun.kernels.cpu.simd.arrays import INT8, INT16, INT32, LINE_BYTES, element_pointer
from pagedrun.kernels.cpu.simd.lanes import FLOATS, NUM_LANES, WORDS
from pagedrun.kernels.kernel_set import has_features

# Rows of a block that, with two vectors of columns, fit the registers: 32 of 16 floats with
# AVX-512, 16 of 8 with AVX2, 32 of 4 with NEON. No bit depends on it.
ROWS = 8 if has_features("avx512f") else 2

# Of so many elements of A one is an operand in memory, read again for each vector. Without, loads
# and products are as many instructions as a processor can issue in the time of the products, and
# with all of them loads take longer. LLVM would load each element once.
_IN_MEMORY = 3

# Terms of a round of the loop: of the few instructions of a term with AVX2, counting is a sixth.
_TERMS = 1 if has_features("avx512f") else 2

_HALVES = ir.VectorType(INT16, NUM_LANES)
_BYTES = ir.VectorType(INT8, NUM_LANES)
_OPERANDS = {types.uint8: WORDS, types.uint16: WORDS, types.float32: FLOATS}  # of A
_LANES = {
    types.uint32: WORDS,
    types.float32: FLOATS,
    types.uint16: _HALVES,
    types.int8: _BYTES,
}


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat type, missing in llvmlite."""

    def _to_string(self) -> str:
        return "bfloat"


PAIRS = ir.VectorType(_BFloat16(), 2 * NUM_LANES)


def block_product(
    num_rows: int,
    num_vectors: int,
    *,
    ahead: int = 0,
    begins: bool = False,
    are_neighbors: bool = False,
) -> Any:
    """Return an intrinsic for blocks of `num_rows` rows and `num_vectors` times sixteen columns.

    ahead: rows of B, up to which it is prefetched; 0: none. begins: write the product instead of
    adding it. are_neighbors: the elements of A for one k are float32, side by side.
    """
    are_neighbors = are_neighbors and has_features("avx512f")

    @intrinsic
    def add_product(
        typing_context: Any,
        a: Any,
        a_offset: Any,
        row_stride: Any,
        k_stride: Any,
        b: Any,
        b_offset: Any,
        b_stride: Any,
        num_k: Any,
        c: Any,
        c_offset: Any,
        c_stride: Any,
    ) -> Any:
        """Add `A @ B` to a block of a C array of sums: int32 where A is uint8, else float32.

        A's element (i, k) is `a[a_offset + i * row_stride + k * k_stride]`; row k of B begins at
        `b[b_offset + k * b_stride]`, row i of the sums at `c[c_offset + i * c_stride]`. All arrays
        are C arrays, offsets and strides count their elements.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args
            whole: list[Any] = [
                None if isinstance(kind, types.Array) else context.cast(builder, value, kind, word)
                for kind, value in zip(kinds, arguments, strict=True)
            ]

            def address(array: int, place: Any, target: Any) -> Any:
                pointer = element_pointer(
                    context, builder, kinds[array], arguments[array], word, place
                )
                return builder.bitcast(pointer, target.as_pointer())

            a_kind, b_kind = kinds[0].dtype, kinds[4].dtype
            total_type = WORDS if a_kind == types.uint8 else FLOATS
            blocks = [(row, vector) for row in range(num_rows) for vector in range(num_vectors)]
            sums = [cgutils.alloca_once(builder, total_type) for _ in blocks]
            places = []
            for (row, vector), total in zip(blocks, sums, strict=True):
                start = builder.add(whole[9], builder.mul(whole[10], whole[10].type(row)))
                start = builder.add(start, start.type(vector * NUM_LANES))
                places.append(address(8, start, total_type))
                zero = ir.Constant(total_type, [0] * NUM_LANES)
                first = zero if begins else builder.load(places[-1], align=4)
                builder.store(first, total)

            def add_term(k: Any) -> None:
                b_start = builder.add(whole[5], builder.mul(k, whole[6]))
                columns = []
                for vector in range(num_vectors):
                    place = builder.add(b_start, b_start.type(vector * NUM_LANES))
                    align = min(2, b_kind.bitwidth // 8)
                    loaded = builder.load(address(4, place, _LANES[b_kind]), align=align)
                    columns.append(_as_operand(builder, loaded, b_kind))
                if ahead:
                    row_bytes = num_vectors * NUM_LANES * b_kind.bitwidth // 8
                    later = builder.add(b_start, builder.mul(whole[6], whole[6].type(ahead)))
                    _prefetch(builder, address(4, later, INT8), row_bytes)
                a_start = builder.add(whole[1], builder.mul(k, whole[3]))
                for row in range(num_rows):
                    if are_neighbors and row % _IN_MEMORY == _IN_MEMORY - 1:
                        pointer = address(0, a_start, INT8)
                        for vector in range(num_vectors):
                            total = sums[row * num_vectors + vector]
                            operands = builder.load(total), columns[vector], pointer
                            builder.store(_multiply_add_at(builder, 4 * row, *operands), total)
                        continue
                    place = builder.add(a_start, builder.mul(whole[2], whole[2].type(row)))
                    operand = _OPERANDS[a_kind]
                    align = min(2, a_kind.bitwidth // 8)
                    element = builder.load(address(0, place, operand.element), align=align)
                    one = _splat(builder, element, operand)
                    for vector in range(num_vectors):
                        total = sums[row * num_vectors + vector]
                        operands = builder.load(total), one, columns[vector]
                        builder.store(_multiply_add(builder, a_kind, *operands), total)

            num_k, each = whole[7], whole[7].type(_TERMS)
            rounds = builder.sdiv(num_k, each)
            with cgutils.for_range(builder, rounds, intp=num_k.type) as loop:
                first = builder.mul(loop.index, each)
                for term in range(_TERMS):
                    add_term(builder.add(first, first.type(term)))
            last = builder.mul(rounds, each)
            with builder.if_then(builder.icmp_signed("<", last, num_k)):
                add_term(last)
            for place, total in zip(places, sums, strict=True):
                builder.store(builder.load(total), place, align=4)
            return context.get_dummy_value()

        word = types.intp
        given = (
            a, a_offset, row_stride, k_stride, b, b_offset, b_stride, num_k, c, c_offset, c_stride
        )  # fmt: skip
        return types.void(*given), generate

    return add_product


def _prefetch(builder: Any, start: Any, num_bytes: int) -> None:
    """Prefetch lines to L2; the address need not be valid."""
    kinds = [start.type, INT32, INT32, INT32]
    hint = builder.module.declare_intrinsic(
        "llvm.prefetch", kinds[:1], ir.FunctionType(ir.VoidType(), kinds)
    )
    for offset in range(0, num_bytes, LINE_BYTES):
        line = builder.gep(start, [INT32(offset)])
        builder.call(hint, [line, INT32(0), INT32(2), INT32(1)])  # read, to L2, data


def _splat(builder: Any, element: Any, lanes: Any) -> Any:
    one = builder.insert_element(ir.Constant(lanes, ir.Undefined), element, INT32(0))
    return builder.shuffle_vector(one, one, ir.Constant(WORDS, [0] * NUM_LANES))


def _as_operand(builder: Any, loaded: Any, kind: Any) -> Any:
    """Return bfloat16 and int8 as float32; other values unchanged."""
    if kind == types.int8:
        return builder.sitofp(builder.sext(loaded, WORDS), FLOATS)
    if kind != types.uint16:
        return loaded
    upper = builder.shl(builder.zext(loaded, WORDS), ir.Constant(WORDS, [16] * NUM_LANES))
    return builder.bitcast(upper, FLOATS)


def _multiply_add_at(builder: Any, offset: int, total: Any, b: Any, pointer: Any) -> Any:
    """Return `a * b + total` with the float32 `a` at an offset in bytes from a pointer."""
    binding.initialize_native_asmparser()
    function_type = ir.FunctionType(FLOATS, [FLOATS, FLOATS, pointer.type])
    text = f"vfmadd231ps {offset}($3){{1to16}}, $2, $0"
    instruction = ir.InlineAsm(function_type, text, "=v,0,v,r", side_effect=False)
    return builder.call(instruction, [total, b, pointer])


def _multiply_add(builder: Any, kind: Any, total: Any, a: Any, b: Any) -> Any:
    name, operands = "llvm.fma.v16f32", (a, b, total)
    if kind == types.uint8:
        name, operands = "llvm.x86.avx512.vpdpbusd.512", (total, a, b)
    if kind == types.uint16:
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        operands = (total, builder.bitcast(a, PAIRS), builder.bitcast(b, PAIRS))
    function_type = ir.FunctionType(total.type, [operand.type for operand in operands])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function_type, name), operands
    )
