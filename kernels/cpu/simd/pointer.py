"""Addresses of array elements, for code that is written in LLVM's language."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.np.arrayobj import make_array

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def element_pointer(
    context: Any, builder: Any, array_type: Any, array: Any, offset_type: Any, offset: Any
) -> Any:
    """Return the address of element `offset` of a C array's memory, whatever its dimensions."""
    memory = make_array(array_type)(context, builder, array)
    index = context.cast(builder, offset, offset_type, types.intp)
    num_bytes = INT64(array_type.dtype.bitwidth // 8)
    base = builder.bitcast(memory.data, INT8.as_pointer())
    return builder.gep(base, [builder.mul(index, num_bytes)])
