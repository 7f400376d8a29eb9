"""Normalization of rows, by root mean square or by mean and variance, and of gated heads.

All but `gated_rms_norm` have one row in each program. A row's bytes do not depend on the
number of rows. They may depend on whether rows begin on 16 bytes, since Triton chooses by it which
thread holds which elements, and thereby the order of the sum: the tensors of a run are either all
aligned or none.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Normalize each row of `x`, float32 inside, rounded once; see the reference."""
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
    """Return one row, float32 with zeros outside, normalized and times the weight."""
    factor = tl.rsqrt(tl.sum(values * values, axis=0) / row_size + eps)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    return values * factor * scale


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to the float32 `residual` in place and normalize the sum; see the reference."""
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


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype | None = None
) -> Tensor:
    """Center and scale each row of `x`, float32 inside, rounded once; see the reference."""
    return _launch_layer_norm(x, None, weight, bias, eps, dtype or weight.dtype)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """Add `x` to the float32 `residual` in place and center and scale the sum; see the
    reference."""
    assert residual.is_contiguous(), "the residual is updated in place"
    assert residual.dtype is torch.float32, "the residual stream is never rounded"
    return _launch_layer_norm(x, residual, weight, bias, eps, x.dtype)


def _launch_layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    assert x.stride(1) == 1, "rows are read in one piece"
    num_tokens, hidden_size = x.shape
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if num_tokens:
        tile, num_warps = row_tile(hidden_size)
        _layer_norm[(num_tokens,)](
            x,
            x if residual is None else residual,
            weight.contiguous(),
            weight if bias is None else bias.contiguous(),
            out,
            x.stride(0),
            hidden_size,
            eps,
            ADDS=residual is not None,
            HAS_BIAS=bias is not None,
            TILE=tile,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _layer_norm(
    x,
    residual,
    weight,
    bias,
    out,
    x_stride,
    row_size,
    eps,
    ADDS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < row_size
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        values += tl.load(residual + row * row_size + columns, mask=inside, other=0.0)
        tl.store(residual + row * row_size + columns, values, mask=inside)
    mean = tl.sum(values, axis=0) / row_size
    # Columns outside hold no value, and their distance from the mean is not to count.
    centered = tl.where(inside, values - mean, 0.0)
    factor = tl.rsqrt(tl.sum(centered * centered, axis=0) / row_size + eps)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    result = centered * factor * scale
    if HAS_BIAS:
        result += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * row_size + columns, result, mask=inside)


_TILE_ELEMENTS = 2048  # of some heads of one token: four loads of 16 bytes a thread
_NUM_WARPS = 4


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize, weight and gate each head of x; see the reference."""
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
    """Compute some heads of one token."""
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
