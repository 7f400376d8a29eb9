"""Linear layers: the vendor's product, a row-invariant one, and int8 by the vendor's product."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.matrix_product import MatmulTile
from pagedrun.kernels.reference.linear import (
    check_in_features,
    int8_bytes,
    quantize_rows,
    shifted_rows,
    with_scales,
)

_GROUP = 8  # row tiles that walk the weight together, so that it is read from L2


def linear_tile(out_features: int, dtype: torch.dtype, device_chip: chip.Chip) -> MatmulTile:
    """Return the tile of a weight [out_features, ...], independent of the number of rows.

    Few columns have narrow tiles, so that one row of tiles occupies most processors.
    """
    if dtype is torch.float32:
        return MatmulTile(32, 64, 32, num_warps=4, num_stages=2)
    if device_chip.matrix_unit == "wgmma" and out_features >= 256 * device_chip.num_processors:
        return MatmulTile(128, 256, 64, num_warps=8, num_stages=3, is_persistent=True)
    columns = 128 if out_features >= 128 * device_chip.num_processors else 64
    if device_chip.backend == "hip":
        return MatmulTile(128, columns, 64, num_warps=8, num_stages=2)
    depth = 64 if device_chip.shared_memory >= 200 << 10 else 32
    return MatmulTile(128, columns, depth, num_warps=8, num_stages=3)


class PackedLinear:
    """`y = x @ weight.T + bias`; see the reference.

    The vendor's library selects its kernel, and with it the order of summation, by the number of
    rows. `row_invariant` selects a product with one fixed tile and order instead, so that a row has
    the same bytes in every batch.
    """

    is_packed = False

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, row_invariant: bool = False
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight.contiguous() if row_invariant else weight
        self._bias = bias
        self.row_invariant = row_invariant
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        if not self.row_invariant:
            return functional.linear(x, self._weight, self._bias)
        return _multiply(x if x.stride(1) == 1 else x.contiguous(), self._weight, self._bias)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_rows, out_features = len(x), len(weight)
    out = torch.empty(num_rows, out_features, dtype=x.dtype, device=x.device)
    on = chip.chip_of(x.device)
    tile = linear_tile(out_features, x.dtype, on)
    if num_rows:
        num_tiles = triton.cdiv(num_rows, tile.rows) * triton.cdiv(out_features, tile.columns)
        most = on.num_processors if tile.is_persistent else num_tiles
        _linear[(min(num_tiles, most),)](
            x,
            weight,
            bias,
            out,
            num_rows,
            out_features,
            weight.shape[1],
            x.stride(0),
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            DEPTH=tile.depth,
            EVEN_DEPTH=weight.shape[1] % tile.depth == 0,
            GROUP=_GROUP,
            PERSISTENT=tile.is_persistent,
            num_warps=tile.num_warps,
            enable_fp_fusion=True,
            num_stages=tile.num_stages,
        )
    return out


@triton.jit(do_not_specialize=["num_rows"])  # one kernel, whatever the number of rows
def _linear(
    x,
    weight,
    bias,
    out,
    num_rows,
    out_features,
    in_features,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN_DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    """Compute tiles of the product: one, or with PERSISTENT each n-th of n programs."""
    num_row_tiles, num_column_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(out_features, COLUMNS)
    if PERSISTENT:
        end = num_row_tiles * num_column_tiles
        for tile in tl.range(tl.program_id(0), end, tl.num_programs(0), flatten=True):
            _multiply_tile(
                tile, num_row_tiles, num_column_tiles, x, weight, bias, out,
                num_rows, out_features, in_features, x_stride,
                ROWS, COLUMNS, DEPTH, EVEN_DEPTH, GROUP,
            )  # fmt: skip
    else:
        _multiply_tile(
            tl.program_id(0), num_row_tiles, num_column_tiles, x, weight, bias, out,
            num_rows, out_features, in_features, x_stride,
            ROWS, COLUMNS, DEPTH, EVEN_DEPTH, GROUP,
        )  # fmt: skip


@triton.jit
def _multiply_tile(
    tile,
    num_row_tiles,
    num_column_tiles,
    x,
    weight,
    bias,
    out,
    num_rows,
    out_features,
    in_features,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN_DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute one tile of the product: the whole depth in ascending order, in one accumulator."""
    first_row_tile = tile // (GROUP * num_column_tiles) * GROUP
    group_rows = tl.minimum(num_row_tiles - first_row_tile, GROUP)
    within = tile % (GROUP * num_column_tiles)
    row_tile, column_tile = first_row_tile + within % group_rows, within // group_rows
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    # Past the end the last row is read again, rather than under a mask; it is not stored.
    x_rows = x + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * x_stride
    weight_rows = weight + tl.minimum(columns, out_features - 1).to(tl.int64)[:, None] * in_features
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, in_features, DEPTH):
        at = start + depth[None, :]
        if EVEN_DEPTH:
            left, right = tl.load(x_rows + at), tl.load(weight_rows + at)
        else:
            left = tl.load(x_rows + at, mask=at < in_features, other=0.0)
            right = tl.load(weight_rows + at, mask=at < in_features, other=0.0)
        total = tl.dot(left, right.T, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + tl.minimum(columns, out_features - 1)).to(tl.float32)[None, :]
    target = out + rows.to(tl.int64)[:, None] * out_features + columns[None, :]
    tl.store(target, total, mask=(rows < num_rows)[:, None] & (columns < out_features)[None, :])


# What `torch._int_mm` takes on NVIDIA's chips: more rows than 16, and sizes in eights.
_INT8_MIN_ROWS = 32
_INT8_MULTIPLE = 8


class Int8Linear:
    """`y = x @ (codes * scales).T + bias`, with quantized rows of x; see the reference.

    Integer sums are exact, so the vendor's choice of a kernel changes no byte.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, *, shifts: bool = False
    ) -> None:
        self.out_features, self.in_features = codes.shape
        check_in_features(self.in_features)
        self.num_bytes = int8_bytes(codes, scales, bias, shifts=shifts)
        self._codes = functional.pad(
            codes, (0, -codes.shape[1] % _INT8_MULTIPLE, 0, -len(codes) % _INT8_MULTIPLE)
        )
        self._scales = scales
        self._bias = bias
        self._column_sums = codes.sum(dim=1, dtype=torch.int32) if shifts else None

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        if self._column_sums is None:
            codes, scales = quantize_rows(x)
        else:
            codes, scales, shifts = shifted_rows(x)
        padding = (0, self._codes.shape[1] - self.in_features, 0, max(0, _INT8_MIN_ROWS - len(x)))
        sums = _multiply_int8(functional.pad(codes, padding), self._codes.T)
        sums = sums[: len(x), : self.out_features]
        if self._column_sums is not None:
            sums = sums + shifts[:, None] * self._column_sums
        return with_scales(sums, scales, self._scales, self._bias, x.dtype)


def _multiply_int8(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of int8 matrices in int32."""
    if a.is_cpu:  # interpreted: processors without VNNI saturate the sums of pairs
        return (a.double() @ b.double()).int()
    return torch._int_mm(a, b)
