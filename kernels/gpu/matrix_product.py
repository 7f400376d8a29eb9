"""The product of two tiles on the matrix units, and under the interpreter."""

from typing import Any

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def multiply(a, b, total) -> Any:
    """Return a @ b + total in float32. a: [m, k], b: [k, n], total: [m, n] float32.

    float32 operands are not rounded to what tensor cores hold.
    """
    if INTERPRETED:  # which takes a bfloat16 for the integer that has the same bits
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")
