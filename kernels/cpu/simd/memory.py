"""Memory that a kernel knows by its address alone."""

from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

from pagedrun.kernels.cpu.jit import part


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@part()
def array_at(address: Any, size: Any, like: Any) -> Any:
    """Inside kernels: return the `size` elements at an address (int64), of the dtype of `like`.

    For operands of which there are too many to be given one by one. Who calls keeps them alive.
    """
    return numba.carray(_pointer(address), (size,), like.dtype)
