"""Memory of arrays in kernels: alignment, pointers to elements, prefetching.

A row of a tile is a cache line of 64 bytes. If rows cross lines, loading a tile takes two to four
times as long, and products of tiles 1.3 times (measured on an Emerald Rapids); NumPy
places large arrays 16 bytes after a line, Numba at any 32 bytes. Hence aligned arrays.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import DTypeLike, NDArray

from pagedrun.kernels.cpu.jit import inlined

LINE_BYTES = 64


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return `np.empty(...)` aligned to a cache line."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


@inlined()
def aligned_zeros(size: Any, dtype: Any) -> Any:
    """Inside kernels: return a flat array of zeros, aligned to a cache line."""
    memory = np.zeros(size + LINE_BYTES, dtype)
    start = -memory.ctypes.data % LINE_BYTES // memory.itemsize
    return memory[start : start + size]


@inlined()
def aligned_floats(size: Any) -> Any:
    """Inside kernels: return a flat uninitialized float32 array, aligned to a cache line."""
    memory = np.empty(size + LINE_BYTES, np.float32)
    start = -memory.ctypes.data % LINE_BYTES // memory.itemsize
    return memory[start : start + size]


@inlined()
def share_tasks(num_threads: Any, num_tasks: Any) -> Any:
    """Inside kernels: return tasks from 0 to `num_tasks` for `next_task`, in equal shares.

    They are [num_threads, 8] int64: the next task of a share, and its end, on a line of their own.
    """
    shares = np.empty((num_threads, LINE_BYTES // 8), np.int64)
    for thread in range(num_threads):
        shares[thread, 0] = thread * num_tasks // num_threads
        shares[thread, 1] = (thread + 1) * num_tasks // num_threads
    return shares


@inlined()
def next_task(shares: Any, thread: Any) -> Any:
    """Inside kernels: return the next task of a thread's share, or else of another's; -1: none.

    Each task is returned once. A thread has more of them if others are slower: on processors with
    cores of two kinds, or beside other programs. Shares keep those of a thread side by side, which
    prefetching counts on, and apart from memory that another thread is writing.
    """
    num_threads = shares.shape[0]
    for i in range(num_threads):
        share = (thread + i) % num_threads
        task = _take(shares, share * shares.shape[1])
        if task < shares[share, 1]:
            return task
    return -1


@intrinsic
def _take(typing_context: Any, numbers: Any, index: Any) -> Any:
    """Return an element of a C array of int64, and add one to it, in one step."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        types_of = signature.args
        place = element_pointer(
            context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
        )
        counter = builder.bitcast(place, INT64.as_pointer())
        return builder.atomic_rmw("add", counter, INT64(1), "monotonic")

    return types.int64(numbers, index), generate


@intrinsic
def prefetch_row(typing_context: Any, array: Any, i: Any, j: Any, k: Any) -> Any:
    """Inside kernels: prefetch the row `array[i, j, k]` of a 4-dimensional C array.

    Blocks are scattered, and hardware prefetchers stop at 4 KiB borders. The address need not be
    valid. The loop over the lines is LLVM IR: a Numba loop multiplied the compile time.
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
        step = context.get_constant(types.intp, LINE_BYTES)
        number = ir.IntType(32)
        hint_type = ir.FunctionType(ir.VoidType(), [row.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [row.type], hint_type)
        with cgutils.for_range_slice(builder, zero, num_bytes, step, zero.type) as (offset, _):
            address = builder.gep(row, [offset])
            builder.call(hint, [address, number(0), number(2), number(1)])  # read, to L2, data

    return types.void(array, i, j, k), generate


@intrinsic
def prefetch_at(typing_context: Any, address: Any, num_lines: Any) -> Any:
    """Inside kernels: prefetch cache lines from an address on, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        hint_type = ir.FunctionType(ir.VoidType(), [start.type, INT32, INT32, INT32])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [start.type], hint_type)
        zero, one = INT64(0), INT64(1)
        with cgutils.for_range_slice(builder, zero, arguments[1], one, zero.type) as (line, _):
            place = builder.gep(start, [builder.mul(line, INT64(LINE_BYTES))])
            builder.call(hint, [place, INT32(0), INT32(3), INT32(1)])  # read, to L1, data
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def prefetch_lines(num_lines: int, level: int) -> Any:
    """Return an intrinsic that prefetches `num_lines` cache lines to a cache level."""

    @intrinsic
    def prefetch(typing_context: Any, array: Any, offset: Any) -> Any:
        """Prefetch a C array from flat index `offset` on, which may be out of range."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            types_of = signature.args
            start = element_pointer(
                context, builder, types_of[0], arguments[0], types_of[1], arguments[1]
            )
            hint_type = ir.FunctionType(ir.VoidType(), [start.type, INT32, INT32, INT32])
            hint = builder.module.declare_intrinsic("llvm.prefetch", [start.type], hint_type)
            for line in range(num_lines):
                address = builder.gep(start, [INT64(line * LINE_BYTES)])
                builder.call(hint, [address, INT32(0), INT32(4 - level), INT32(1)])
            return context.get_dummy_value()

        return types.void(array, offset), generate

    return prefetch


INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def element_pointer(
    context: Any, builder: Any, array_type: Any, array: Any, offset_type: Any, offset: Any
) -> Any:
    """Return the address of element `offset` of a C array of any dimensions.

    array: or an address, then of words.
    """
    if isinstance(array_type, types.Integer):
        words = builder.inttoptr(array, INT32.as_pointer())
        index = context.cast(builder, offset, offset_type, types.intp)
        return builder.bitcast(builder.gep(words, [index]), INT8.as_pointer())
    memory = make_array(array_type)(context, builder, array)
    index = context.cast(builder, offset, offset_type, types.intp)
    num_bytes = INT64(array_type.dtype.bitwidth // 8)
    base = builder.bitcast(memory.data, INT8.as_pointer())
    return builder.gep(base, [builder.mul(index, num_bytes)])
