"""A hint to the memory: these bytes will be read soon."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from pagedrun.kernels.cpu.simd.pointer import INT32, INT64, element_pointer

CACHE_LINE_BYTES = 64


@intrinsic
def prefetch_row(typing_context: Any, array: Any, i: Any, j: Any, k: Any) -> Any:
    """Inside kernels: start loading the row `array[i, j, k]` of a 4-dimensional C array.

    Blocks lie scattered, so the hardware's own prefetcher, which stops at 4 KiB borders, finds
    little. The address need not be valid. The loop over the lines is written in LLVM's language: as
    a Numba loop it multiplied the time to compile.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        indices = [
            context.cast(builder, index, index_type, types.intp)
            for index, index_type in zip(arguments[1:], signature.args[1:], strict=True)
        ]
        memory = make_array(array_type)(context, builder, arguments[0])
        zero = context.get_constant(types.intp, 0)
        first = cgutils.get_item_pointer(
            context, builder, array_type, memory, [*indices, zero], wraparound=False
        )
        row = builder.bitcast(first, ir.IntType(8).as_pointer())
        num_columns = builder.extract_value(memory.shape, 3)
        num_bytes = builder.mul(num_columns, memory.itemsize)
        step = context.get_constant(types.intp, CACHE_LINE_BYTES)
        number = ir.IntType(32)
        hint_type = ir.FunctionType(ir.VoidType(), [row.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [row.type], hint_type)
        with cgutils.for_range_slice(builder, zero, num_bytes, step, zero.type) as (offset, _):
            address = builder.gep(row, [offset])
            builder.call(hint, [address, number(0), number(2), number(1)])  # read, to L2, data

    return types.void(array, i, j, k), generate


@intrinsic
def prefetch_at(typing_context: Any, address: Any, num_lines: Any) -> Any:
    """Inside kernels: start loading cache lines from an address on, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        hint_type = ir.FunctionType(ir.VoidType(), [start.type, INT32, INT32, INT32])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [start.type], hint_type)
        zero, one = INT64(0), INT64(1)
        with cgutils.for_range_slice(builder, zero, arguments[1], one, zero.type) as (line, _):
            place = builder.gep(start, [builder.mul(line, INT64(CACHE_LINE_BYTES))])
            builder.call(hint, [place, INT32(0), INT32(3), INT32(1)])  # read, to L1, data
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def prefetch_lines(num_lines: int, level: int) -> Any:
    """Return an intrinsic that starts loading `num_lines` cache lines into a level of the cache."""

    @intrinsic
    def prefetch(typing_context: Any, array: Any, offset: Any) -> Any:
        """Start loading a C array from flat place `offset` on, which need not lie inside."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            types_of = signature.args
            start = element_pointer(
                context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
            )
            hint_type = ir.FunctionType(ir.VoidType(), [start.type, INT32, INT32, INT32])
            hint = builder.module.declare_intrinsic("llvm.prefetch", [start.type], hint_type)
            for line in range(num_lines):
                address = builder.gep(start, [INT64(line * CACHE_LINE_BYTES)])
                builder.call(hint, [address, INT32(0), INT32(4 - level), INT32(1)])
            return context.get_dummy_value()

        return types.void(array, offset), generate

    return prefetch
