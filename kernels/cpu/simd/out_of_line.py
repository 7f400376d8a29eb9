"""A mark for functions that LLVM shall not copy into their callers."""

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def out_of_line(typing_context: Any) -> Any:
    """Keep the function that calls this in one piece: large ones compile in a fraction of the time.

    Numba optimises the code of a part once for each kernel, part and wrapper around it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate
