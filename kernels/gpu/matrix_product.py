"""Tiles of matrix products, and the product of two tiles, also under the interpreter."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """Tile of one program, with its warps and pipeline stages.

    is_persistent: as many programs as processors, each with several tiles; the first loads of a
    tile overlap the end of the one before. num_parts: parts of the inputs, each multiplied by a
    program of its own; their sums are added afterwards.
    """

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int
    is_persistent: bool = False
    num_parts: int = 1


@triton.jit
def multiply(a, b, total) -> Any:
    """Return a @ b + total in float32. a: [m, k], b: [k, n], total: [m, n] float32.

    float32 operands are not rounded to TF32.
    """
    if INTERPRETED:
        # The interpreter multiplies bfloat16 as integers of the same bits, and the bits of its
        # float32 products depend on the row index, unlike those of a GPU.
        wide = tl.dot(a.to(tl.float32).to(tl.float64), b.to(tl.float32).to(tl.float64))
        return (wide + total.to(tl.float64)).to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")
