"""Residual addition and the normalisation that follows it, in one pass over the row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu.rms_norm import normalize, row_tile


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to the float32 `residual` in place and normalise the sum; see the reference."""
    assert residual.is_contiguous(), "the residual is updated in place"
    assert residual.dtype is torch.float32, "the residual stream is never rounded"
    assert x.stride(1) == 1, "rows are read in one piece"
    num_tokens, hidden_size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_tokens:
        tile, num_warps = row_tile(hidden_size)
        _add_rms_norm[(num_tokens,)](
            x,
            residual,
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


@triton.jit
def _add_rms_norm(x, residual, weight, out, x_stride, row_size, eps, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < row_size
    added = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(residual + row * row_size + columns, mask=inside, other=0.0) + added
    tl.store(residual + row * row_size + columns, total, mask=inside)
    normalized = normalize(total, weight, columns, inside, row_size, eps)
    tl.store(out + row * row_size + columns, normalized, mask=inside)
