"""Root-mean-square normalisation of heads, each then multiplied by its gate."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE_ELEMENTS = 2048  # of some heads of one token: four loads of 16 bytes a thread
_NUM_WARPS = 4


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return each head of x, normalised, weighted and gated; see the reference."""
    assert x.stride(1) == gate.stride(1) == 1, "rows are read in one piece"
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = len(weight)
    num_heads = x.shape[1] // size
    tile = triton.next_power_of_2(size)
    tile_heads = min(max(1, _TILE_ELEMENTS // tile), triton.next_power_of_2(num_heads))
    if len(x):
        _gated_rms_norm[(len(x), triton.cdiv(num_heads, tile_heads))](
            x,
            gate,
            weight.contiguous(),
            out,
            x.stride(0),
            gate.stride(0),
            eps,
            NUM_HEADS=num_heads,
            SIZE=size,
            TILE_HEADS=tile_heads,
            TILE=tile,
            num_warps=_NUM_WARPS,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _gated_rms_norm(
    x,
    gate,
    weight,
    out,
    x_stride,
    gate_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: some heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    columns = tl.arange(0, TILE)
    places = heads[:, None] * SIZE + columns[None, :]
    inside = (heads[:, None] < NUM_HEADS) & (columns[None, :] < SIZE)
    values = tl.load(x + token * x_stride + places, mask=inside, other=0.0).to(tl.float32)
    gates = tl.load(gate + token * gate_stride + places, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, axis=1) / SIZE + eps)
    normalized = values * factor[:, None] * scale[None, :]
    result = normalized * (gates / (1.0 + tl.exp(-gates)))
    tl.store(out + token * (NUM_HEADS * SIZE) + places, result, mask=inside)
