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
    if INTERPRETED:
        # It takes a bfloat16 for the integer with the same bits. And the float32 product of the
        # library behind it gives a row other bits in another place, unlike a GPU's.
        wide = tl.dot(a.to(tl.float32).to(tl.float64), b.to(tl.float32).to(tl.float64))
        return (wide + total.to(tl.float64)).to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")
