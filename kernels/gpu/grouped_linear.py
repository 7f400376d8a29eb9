"""Linear layers of many experts, as one launch whose tiles have one expert each."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.matrix_product import MatmulTile, multiply


def expert_tile(dtype: torch.dtype, device_chip: chip.Chip) -> MatmulTile:
    """Return the tile of a chip, independent of the number of rows.

    An expert has few rows, so reading weights dominates: 64 rows, the height of a warp group, cost
    a generated token nothing.
    """
    if dtype is torch.float32:
        return MatmulTile(32, 64, 32, num_warps=4, num_stages=2)
    if device_chip.backend == "hip":
        return MatmulTile(64, 128, 64, num_warps=4, num_stages=2)
    depth = 64 if device_chip.shared_memory >= 200 << 10 else 32
    return MatmulTile(64, 128, depth, num_warps=4, num_stages=3)


class PackedGroupedLinear:
    """`y = x @ weight[e].T + bias[e]`; see the reference.

    The weights are stacked, [num_experts, out_features, in_features]. Every product has one fixed
    tile and one order of summation, so that a row's bytes do not depend on other rows.
    """

    row_invariant = True

    def __init__(self, weights: Sequence[Sequence[Tensor]], bias: Tensor | None = None) -> None:
        self._weight = torch.cat([torch.stack(list(part)) for part in weights], dim=1)
        self.num_experts, self.out_features, self.in_features = self._weight.shape
        self._bias = None if bias is None else bias.contiguous()
        self.num_bytes = self._weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x."""
        x = x if x.stride(1) == 1 else x.contiguous()
        num_rows = len(x if tokens is None else tokens)
        out = torch.empty(num_rows, self.out_features, dtype=x.dtype, device=x.device)
        tile = expert_tile(x.dtype, chip.chip_of(x.device))
        num_tiles = most_tiles(num_rows, self.num_experts, tile.rows)
        if num_rows:
            _grouped_linear[(num_tiles * triton.cdiv(self.out_features, tile.columns),)](
                x,
                starts,
                tokens,
                self._weight,
                self._bias,
                out,
                self.num_experts,
                self.out_features,
                self.in_features,
                x.stride(0),
                ROWS=tile.rows,
                COLUMNS=tile.columns,
                DEPTH=tile.depth,
                EVEN_DEPTH=self.in_features % tile.depth == 0,
                EXPERTS=triton.next_power_of_2(self.num_experts),
                num_warps=tile.num_warps,
                enable_fp_fusion=True,
                num_stages=tile.num_stages,
            )
        return out


@triton.jit
def _grouped_linear(
    x,
    starts,
    tokens,
    weight,
    bias,
    out,
    num_experts,
    out_features,
    in_features,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN_DEPTH: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Compute one tile: the whole depth in ascending order, in one accumulator."""
    row_tile, columns = tile_of_program(out_features, COLUMNS)
    expert, first, end = rows_of_tile(starts, num_experts, row_tile, ROWS, EXPERTS)
    if first >= end:
        return
    rows, sources = sources_of(tokens, first, end, ROWS)
    depth = tl.arange(0, DEPTH)
    x_rows = x + sources.to(tl.int64)[:, None] * x_stride
    own_weight = weight + expert.to(tl.int64) * out_features * in_features
    weight_columns = tl.minimum(columns, out_features - 1).to(tl.int64)
    weight_rows = own_weight + weight_columns[:, None] * in_features
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, in_features, DEPTH):
        at = start + depth[None, :]
        if EVEN_DEPTH:
            left, right = tl.load(x_rows + at), tl.load(weight_rows + at)
        else:
            left = tl.load(x_rows + at, mask=at < in_features, other=0.0)
            right = tl.load(weight_rows + at, mask=at < in_features, other=0.0)
        total = multiply(left, right.T, total)
    if bias is not None:
        total += tl.load(bias + expert * out_features + weight_columns).to(tl.float32)[None, :]
    target = out + rows.to(tl.int64)[:, None] * out_features + columns[None, :]
    tl.store(target, total, mask=(rows < end)[:, None] & (columns < out_features)[None, :])


def most_tiles(num_rows: int, num_experts: int, tile_rows: int) -> int:
    """Return the largest number of tiles of rows: each expert may have a partial one.

    The numbers of rows are known on the device only.
    """
    return num_rows // tile_rows + min(num_experts, num_rows)


@triton.jit
def tile_of_program(out_features, COLUMNS: tl.constexpr) -> Any:
    """Return the tile of rows of a program, and its outputs, [COLUMNS]."""
    num_column_tiles = tl.cdiv(out_features, COLUMNS)
    row_tile = tl.program_id(0) // num_column_tiles
    column_tile = tl.program_id(0) % num_column_tiles
    return row_tile, column_tile * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def sources_of(tokens, first, end, ROWS: tl.constexpr) -> Any:
    """Return the rows of a tile from `first` on, and the rows of their inputs, [ROWS] each.

    Past the end the last row is read again instead of masking; it is not stored. tokens: the row
    of each input, None for the same row.
    """
    rows = first + tl.arange(0, ROWS)
    sources = tl.minimum(rows, end - 1)
    if tokens is not None:
        sources = tl.load(tokens + sources)
    return rows, sources


@triton.jit
def rows_of_tile(starts, num_experts, row_tile, ROWS: tl.constexpr, EXPERTS: tl.constexpr) -> Any:
    """Return a tile's expert, its first row, and the end of the expert's rows.

    Tiles of ROWS rows are numbered through the experts, each of which may end with a partial one;
    the expert of a tile follows from a cumulative sum. A tile after the last begins at or after the
    end of the rows. starts: see `ExpertRows`. EXPERTS: num_experts, or the next power of two.
    """
    numbers = tl.arange(0, EXPERTS)
    inside = numbers < num_experts
    firsts = tl.load(starts + numbers, mask=inside, other=0)
    lasts = tl.load(starts + numbers + 1, mask=inside, other=0)
    num_tiles = tl.cdiv(lasts - firsts, ROWS)
    tile_ends = tl.cumsum(num_tiles, axis=0)
    expert = tl.sum((tile_ends <= row_tile).to(tl.int32), axis=0)
    is_own = numbers == expert
    tile_of_expert = row_tile - tl.sum(tl.where(is_own, tile_ends - num_tiles, 0), axis=0)
    end = tl.sum(tl.where(is_own, lasts, 0), axis=0)
    first = tl.sum(tl.where(is_own, firsts, 0), axis=0) + tile_of_expert * ROWS
    return expert, first, end
