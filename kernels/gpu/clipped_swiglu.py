"""The gated activation of gpt-oss's experts."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024  # elements of gate and of up in each program: two loads of 16 bytes a thread
_NUM_WARPS = 4


def clipped_swiglu(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """Return `(up + 1) * gate * sigmoid(alpha * gate)`, float32 inside; see the reference."""
    assert gate_up.stride(1) == 1, "rows are read in one piece"
    num_tokens, size = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(size, _TILE))
        _clipped_swiglu[grid](
            gate_up,
            out,
            limit,
            alpha,
            gate_up.stride(0),
            size,
            TILE=_TILE,
            num_warps=_NUM_WARPS,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _clipped_swiglu(gate_up, out, limit, alpha, stride, size, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    gate = tl.load(gate_up + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + size + columns, mask=inside, other=0.0).to(tl.float32)
    # Not minimum and maximum: a NaN, which no comparison holds for, stays.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, up)
    up = tl.where(up < -limit, -limit, up)
    activated = (up + 1.0) * (gate / (1.0 + tl.exp(-alpha * gate)))
    tl.store(out + row * size + columns, activated, mask=inside)
