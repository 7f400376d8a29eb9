"""Whole matrices out of their codes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu.packed.code_tensors import CodeTensors
from pagedrun.kernels.gpu.packed.unpack_tile import unpack_tile

_COLUMNS = 64


def expand(
    codes: CodeTensors, start: int, end: int, in_features: int, dtype: torch.dtype
) -> Tensor:
    """Return outputs start to end of the first weight, [end - start, in_features] in `dtype`."""
    words = codes.words[0]
    matrix = torch.empty(end - start, in_features, dtype=dtype, device=words.device)
    _expand[(triton.cdiv(end - start, _COLUMNS), words.shape[0])](
        *codes.tensors,
        matrix,
        start,
        end,
        words.shape[1],
        in_features,
        codes.num_groups,
        **codes.constants,
        COLUMNS=_COLUMNS,
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=False,
    )
    return matrix


@triton.jit(do_not_specialize=["start", "end"])
def _expand(
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    matrix,
    start,
    end,
    out_features,
    in_features,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    STEP: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One step of a tile of outputs."""
    step = tl.program_id(1)
    columns = start + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tile = unpack_tile(
        *(words, above, scales, factors, zeros, minima, minimum_factors),
        *(matrix, step, tl.minimum(columns, end - 1), out_features, num_groups),
        *(KIND, OFFSET, GROUP, SPAN, STEP, NEIGHBOURS, COLUMNS),
    )
    inputs = step * STEP + tl.arange(0, STEP)
    target = matrix + (columns - start).to(tl.int64)[:, None] * in_features + inputs[None, :]
    tl.store(target, tile, mask=(columns < end)[:, None] & (inputs < in_features)[None, :])
