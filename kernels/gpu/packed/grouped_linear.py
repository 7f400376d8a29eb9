"""The linear layers of many experts, their weights held in few bits."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.experts.expert_tiles import (
    most_tiles,
    rows_of_tile,
    sources_of,
    tile_of_program,
)
from pagedrun.kernels.gpu.packed.code_tensors import STEP, CodeTensors
from pagedrun.kernels.gpu.packed.product_tile import invariant_tile
from pagedrun.kernels.gpu.packed.step_products import multiply_steps, store_outputs
from pagedrun.kernels.packed_weight import PackedWeight, joined_neighbours


class QuantizedGroupedLinear:
    """`y = x @ weight[e].T + bias[e]` for 16-bit x; see the reference of `PackedGroupedLinear`.

    weights: all of one shape and form; they are copied, one expert at a time. Every product has one
    tile and one order of summation, so that a row has the same bytes whoever else has its expert.
    """

    row_invariant = True

    def __init__(
        self, weights: Sequence[Sequence[PackedWeight]], bias: Tensor | None = None
    ) -> None:
        self.num_experts = len(weights[0])
        whole = _side_by_side(weights, 0)
        self.out_features, self.in_features = whole.out_features, whole.in_features
        self.num_bytes = self.num_experts * whole.num_bytes + (0 if bias is None else bias.nbytes)
        experts = range(self.num_experts)
        self._codes = CodeTensors.of(_side_by_side(weights, expert) for expert in experts)
        self._bias = None if bias is None else bias.contiguous()

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x."""
        x = x if x.stride(1) == 1 else x.contiguous()
        num_rows = len(x if tokens is None else tokens)
        out = torch.empty(num_rows, self.out_features, dtype=x.dtype, device=x.device)
        tile = invariant_tile(chip.chip_of(x.device))
        num_tiles = most_tiles(num_rows, self.num_experts, tile.rows)
        if num_rows:
            _grouped_codes[(num_tiles * triton.cdiv(self.out_features, tile.columns),)](
                x,
                starts,
                tokens,
                *self._codes.tensors,
                self._bias,
                out,
                self.num_experts,
                self.out_features,
                self.in_features,
                x.stride(0),
                self._codes.words.shape[1],
                self._codes.num_groups,
                **self._codes.constants,
                ROWS=tile.rows,
                COLUMNS=tile.columns,
                EVEN=self.in_features % STEP == 0,
                EXPERTS=triton.next_power_of_2(self.num_experts),
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
                enable_fp_fusion=False,
            )
        return out


def _side_by_side(weights: Sequence[Sequence[PackedWeight]], expert: int) -> PackedWeight:
    [whole] = joined_neighbours([part[expert] for part in weights])
    return whole


@triton.jit
def _grouped_codes(
    x,
    starts,
    tokens,
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    bias,
    out,
    num_experts,
    out_features,
    in_features,
    x_stride,
    num_steps,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    STEP: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """One tile of one expert: all steps in ascending order, in one accumulator."""
    row_tile, columns = tile_of_program(out_features, COLUMNS)
    expert, first, end = rows_of_tile(starts, num_experts, row_tile, ROWS, EXPERTS)
    if first >= end:
        return
    rows, sources = sources_of(tokens, first, end, ROWS)
    own_columns = tl.minimum(columns, out_features - 1)
    WORD_BITS: tl.constexpr = 8 if KIND == 2 or KIND == 8 else 4
    before = expert.to(tl.int64) * out_features
    words += before * num_steps * (STEP * WORD_BITS // 32)
    scales += before * num_groups
    if above is not None:
        above += before * num_steps * (STEP * (KIND - 4) // 32)
    if factors is not None:
        factors += before * (num_groups // NEIGHBOURS)
    if zeros is not None:
        zeros += before * num_groups
    if minima is not None:
        minima += before * num_groups
    if minimum_factors is not None:
        minimum_factors += before * (num_groups // NEIGHBOURS)
    x_rows = x + sources.to(tl.int64)[:, None] * x_stride
    total = multiply_steps(
        *(x_rows, words, above, scales, factors, zeros, minima, minimum_factors, x),
        *(own_columns, 0, num_steps, out_features, in_features, num_groups),
        *(KIND, OFFSET, GROUP, SPAN, STEP, NEIGHBOURS, ROWS, COLUMNS, EVEN),
    )
    if bias is not None:
        total += tl.load(bias + expert * out_features + own_columns).to(tl.float32)[:, None]
    store_outputs(out, total, rows, end, columns, out_features)
