"""Linear layers of quantized weights, and those of many experts."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.grouped_linear import (
    most_tiles,
    rows_of_tile,
    sources_of,
    tile_of_program,
)
from pagedrun.kernels.gpu.matrix_product import MatmulTile
from pagedrun.kernels.gpu.quantized.code_tensors import CodeTensors
from pagedrun.kernels.gpu.quantized.products import (
    EXPAND_ROWS,
    expand,
    invariant_tile,
    multiply_steps,
    quantized_tile,
    rounded,
    store_outputs,
)
from pagedrun.kernels.quantized_weight import PackedWeight, joined_neighbors

# Numbers of an expanded matrix that are in memory at a time.
_EXPANDED_AT_ONCE = 1 << 26


class QuantizedLinear:
    """`y = x @ weight.T + bias` for 16-bit x, with the numbers of the dequantized weight.

    weight: copied into a layout of its own. bias: [out_features] in the dtype of x, or None.
    `row_invariant` selects one tile and order of summation for any number of rows. Otherwise few
    rows have tiles of their own, and many use the vendor's product with the result of `expand`.
    """

    is_packed = True

    def __init__(
        self, weight: PackedWeight, bias: Tensor | None = None, row_invariant: bool = False
    ) -> None:
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.num_bytes = weight.num_bytes + (0 if bias is None else bias.nbytes)
        self.row_invariant = row_invariant
        self._codes = CodeTensors.of([weight])
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] to [num_rows, out_features], in the same dtype."""
        x = x if x.stride(1) == 1 else x.contiguous()
        device_chip = chip.chip_of(x.device)
        if self.row_invariant:
            return self._multiply(x, invariant_tile(self._codes, device_chip))
        if len(x) >= EXPAND_ROWS:
            return self._expanded(x)
        return self._multiply(x, quantized_tile(len(x), self._codes, device_chip))

    def _expanded(self, x: Tensor) -> Tensor:
        """Return the vendor's product, expanding some outputs at a time."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype, device=x.device)
        size = max(_EXPANDED_AT_ONCE // self.in_features, 1)
        for start in range(0, self.out_features, size):
            end = min(start + size, self.out_features)
            matrix = expand(self._codes, start, end, self.in_features, x.dtype)
            bias = None if self._bias is None else self._bias[start:end]
            if size >= self.out_features:
                return functional.linear(x, matrix, bias)
            out[:, start:end] = functional.linear(x, matrix, bias)
        return out

    def _multiply(self, x: Tensor, tile: MatmulTile) -> Tensor:
        num_rows, parts = len(x), tile.num_parts
        out = torch.empty(num_rows, self.out_features, dtype=x.dtype, device=x.device)
        if not num_rows:
            return out
        sums = out
        if parts > 1:
            shape = (parts, num_rows, self.out_features)
            sums = torch.empty(shape, dtype=torch.float32, device=x.device)
        num_tiles = triton.cdiv(self.out_features, tile.columns) * triton.cdiv(num_rows, tile.rows)
        _multiply_codes[(num_tiles, parts)](
            x,
            *self._codes.tensors,
            self._bias if parts == 1 else None,
            sums,
            num_rows,
            self.out_features,
            self.in_features,
            x.stride(0),
            self._codes.words.shape[1],
            self._codes.num_groups,
            **self._codes.constants,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            EVEN=self.in_features % self._codes.step == 0,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            enable_fp_fusion=False,
        )
        if parts > 1:
            size = num_rows * self.out_features
            _add_parts[(triton.cdiv(size, _ADDED),)](
                sums,
                self._bias,
                out,
                size,
                self.out_features,
                PARTS=parts,
                SIZE=_ADDED,
                num_warps=4,
                enable_fp_fusion=False,
            )
        return out


_ADDED = 1024  # sums that a program adds


@triton.jit(do_not_specialize=["num_rows"])  # one kernel, whatever the number of rows
def _multiply_codes(
    x,
    words,
    above,
    scales,
    factors,
    zeros,
    minima,
    minimum_factors,
    bias,
    out,
    num_rows,
    out_features,
    in_features,
    x_stride,
    num_steps,
    num_groups,
    KIND: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    SLAB: tl.constexpr,
    NEIGHBORS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Compute one tile of the product, over all steps or one part of them, in ascending order.

    Tiles of the same outputs follow each other, so that codes are read from memory once.
    """
    num_row_tiles = tl.cdiv(num_rows, ROWS)
    rows = tl.program_id(0) % num_row_tiles * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) // num_row_tiles * COLUMNS + tl.arange(0, COLUMNS)
    # Past the end the last one is read again, rather than under a mask; it is not stored.
    own_columns = tl.minimum(columns, out_features - 1)
    x_rows = x + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * x_stride
    steps_each = tl.cdiv(num_steps, tl.num_programs(1))
    first = tl.program_id(1) * steps_each
    total = multiply_steps(
        *(x_rows, words, above, scales, factors, zeros, minima, minimum_factors, x),
        *(
            own_columns,
            first,
            tl.minimum(first + steps_each, num_steps),
            out_features,
            in_features,
            num_groups,
        ),
        *(KIND, OFFSET, GROUP, SLAB, NEIGHBORS, ROWS, COLUMNS, EVEN),
    )
    if bias is not None:
        total += tl.load(bias + own_columns).to(tl.float32)[:, None]
    own = out + tl.program_id(1).to(tl.int64) * num_rows * out_features
    store_outputs(own, total, rows, num_rows, columns, out_features)


@triton.jit(do_not_specialize=["size"])
def _add_parts(sums, bias, out, size, out_features, PARTS: tl.constexpr, SIZE: tl.constexpr):
    """Add the sums of all parts, one after the other, and the bias."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < size
    total = tl.zeros((SIZE,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(sums + part * size.to(tl.int64) + at, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + at % out_features, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, rounded(total, out), mask=inside)


class QuantizedGroupedLinear:
    """`y = x @ weight[e].T + bias[e]` for 16-bit x; see the reference of `PackedGroupedLinear`.

    weights: all of one shape and form; they are copied, one expert at a time. Every product has one
    tile and one order of summation, so that a row's bytes do not depend on other rows.
    """

    row_invariant = True

    def __init__(
        self, weights: Sequence[Sequence[PackedWeight]], bias: Tensor | None = None
    ) -> None:
        self.num_experts = len(weights[0])
        whole = _expert_weight(weights, 0)
        self.out_features, self.in_features = whole.out_features, whole.in_features
        self.num_bytes = self.num_experts * whole.num_bytes + (0 if bias is None else bias.nbytes)
        experts = range(self.num_experts)
        self._codes = CodeTensors.of(_expert_weight(weights, expert) for expert in experts)
        self._bias = None if bias is None else bias.contiguous()

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x."""
        x = x if x.stride(1) == 1 else x.contiguous()
        num_rows = len(x if tokens is None else tokens)
        out = torch.empty(num_rows, self.out_features, dtype=x.dtype, device=x.device)
        tile = invariant_tile(self._codes, chip.chip_of(x.device))
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
                EVEN=self.in_features % self._codes.step == 0,
                EXPERTS=triton.next_power_of_2(self.num_experts),
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
                enable_fp_fusion=False,
            )
        return out


def _expert_weight(weights: Sequence[Sequence[PackedWeight]], expert: int) -> PackedWeight:
    [whole] = joined_neighbors([part[expert] for part in weights])
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
    SLAB: tl.constexpr,
    NEIGHBORS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Compute one tile of one expert: all steps in ascending order, in one accumulator."""
    row_tile, columns = tile_of_program(out_features, COLUMNS)
    expert, first, end = rows_of_tile(starts, num_experts, row_tile, ROWS, EXPERTS)
    if first >= end:
        return
    rows, sources = sources_of(tokens, first, end, ROWS)
    own_columns = tl.minimum(columns, out_features - 1)
    WORDS: tl.constexpr = 2 * SLAB if KIND == 2 or KIND == 8 else SLAB
    before = expert.to(tl.int64) * out_features
    words += before * num_steps * WORDS
    scales += before * num_groups
    if above is not None:
        above += before * num_steps * SLAB
    if factors is not None:
        factors += before * (num_groups // NEIGHBORS)
    if zeros is not None:
        zeros += before * num_groups
    if minima is not None:
        minima += before * num_groups
    if minimum_factors is not None:
        minimum_factors += before * (num_groups // NEIGHBORS)
    x_rows = x + sources.to(tl.int64)[:, None] * x_stride
    total = multiply_steps(
        *(x_rows, words, above, scales, factors, zeros, minima, minimum_factors, x),
        *(own_columns, 0, num_steps, out_features, in_features, num_groups),
        *(KIND, OFFSET, GROUP, SLAB, NEIGHBORS, ROWS, COLUMNS, EVEN),
    )
    if bias is not None:
        total += tl.load(bias + expert * out_features + own_columns).to(tl.float32)[:, None]
    store_outputs(out, total, rows, end, columns, out_features)
