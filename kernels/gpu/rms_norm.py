"""Root-mean-square normalisation, one row in each program.

A row's bytes do not depend on the number of rows. They may depend on whether rows begin on 16
bytes, since Triton chooses by it which thread holds which elements, and thereby the order of the
sum: the tensors of a run are either all aligned or none.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Normalise each row of `x`, float32 inside, rounded once; see the reference."""
    assert x.stride(1) == 1, "rows are read in one piece"
    num_tokens, hidden_size = x.shape
    out = torch.empty(x.shape, dtype=dtype or weight.dtype, device=x.device)
    if num_tokens:
        tile, num_warps = row_tile(hidden_size)
        _rms_norm[(num_tokens,)](
            x,
            weight.contiguous(),
            out,
            x.stride(0),
            hidden_size,
            eps,
            TILE=tile,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )
    return out


def row_tile(row_size: int) -> tuple[int, int]:
    """Return the tile that holds a whole row, and the number of warps for it.

    A warp moves 16 bytes for each of its threads at a time: 256 elements of two bytes. Four such
    pieces a warp keep enough loads in flight and the registers few.
    """
    tile = triton.next_power_of_2(row_size)
    return tile, min(16, max(1, tile // 1024))


@triton.jit
def _rms_norm(x, weight, out, x_stride, row_size, eps, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < row_size
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    normalized = normalize(values, weight, columns, inside, row_size, eps)
    tl.store(out + row * row_size + columns, normalized, mask=inside)


@triton.jit
def normalize(values, weight, columns, inside, row_size, eps):
    """Return one row, float32 with zeros outside, normalised and times the weight."""
    factor = tl.rsqrt(tl.sum(values * values, axis=0) / row_size + eps)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    return values * factor * scale
