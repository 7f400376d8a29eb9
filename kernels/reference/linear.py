"""Linear layers of floats, and of int8 weights with inputs quantized row by row."""

import torch
from torch import Tensor
from torch.nn import functional


class PackedLinear:
    """`y = x @ weight.T + bias`.

    weight: [out_features, in_features]. bias: [out_features], same dtype, or None.
    A twin may keep the weight in a layout of its own and drop the one it was given; `is_packed`
    says whether it did. Here the weight is kept as it is. A twin may give each row the same bytes
    whatever the number of rows; this class is about values and promises none.
    """

    is_packed = False
    row_invariant = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self._bias = bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        return functional.linear(x, self._weight, self._bias)


# Products of codes are at most 255 * 128, so the sum of as many fits 32 bits.
MAX_IN_FEATURES = 2**16


class Int8Linear:
    """`y = x @ (codes * scales).T + bias`, each row x being quantized.

    codes: [out_features, in_features] int8, with at most `MAX_IN_FEATURES` columns. scales:
    [out_features] float32. bias: [out_features] in the dtype of x, or None. shifts: rows are
    quantized by `shifted_rows`, else by `quantize_rows`.

    Sums of products of codes are integers, exact in any order: so a row has the same bytes whatever
    the number of rows, on any device. The rest is float32: the sum, rounded once; times the row's
    scale times the column's; plus the bias; rounded to the dtype of x. Raises `ValueError` for too
    many columns.
    """

    is_packed = False
    row_invariant = True

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, *, shifts: bool = False
    ) -> None:
        self.out_features, self.in_features = codes.shape
        check_in_features(self.in_features)
        self.num_bytes = int8_bytes(codes, scales, bias, shifts=shifts)
        self._codes = codes
        self._scales = scales
        self._bias = bias
        self._shifts = shifts

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        if self._shifts:
            codes, scales, shifts = shifted_rows(x)
            numbers = codes.double() + shifts.double()[:, None]
        else:
            codes, scales = quantize_rows(x)
            numbers = codes.double()
        sums = numbers @ self._codes.double().T  # exact: integers below 2^53
        return with_scales(sums, scales, self._scales, self._bias, x.dtype)


def check_in_features(in_features: int) -> None:
    """Raise `ValueError` where sums might not fit 32 bits."""
    if in_features > MAX_IN_FEATURES:
        raise ValueError(
            f"int8 products have at most {MAX_IN_FEATURES} terms, and these have {in_features}"
        )


def int8_bytes(codes: Tensor, scales: Tensor, bias: Tensor | None, *, shifts: bool) -> int:
    """Return the bytes of codes, scales and bias, and of the sums of codes that shifts need."""
    sums = 4 * len(codes) if shifts else 0
    return codes.nbytes + scales.nbytes + sums + (0 if bias is None else bias.nbytes)


def with_scales(
    sums: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return what a layer makes of sums [num_rows, out_features] of products of codes."""
    y = sums.float() * (row_scales[:, None] * scales)
    return (y if bias is None else y + bias.float()).to(dtype)


# Below it, scales would be too small for their inverse to be a number.
SMALLEST = 2.0**-100
LARGEST_CODE = 127.0


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and a scale for each row, so that `codes * scale` is about the row.

    x: [num_rows, num_columns], any float dtype. Returns codes [num_rows, num_columns] int8, from
    -127 to 127, and scales [num_rows] float32.

    The scale is the row's largest magnitude over 127; a code is the number times the scale's
    inverse, 127 over that magnitude, rounded to the nearest integer, halves to even. All of it is
    computed in float32. So an element is off by half a scale at most, 1 / 254 of the largest, a
    rounding aside. A magnitude below 2^-100 counts as 2^-100, so a row of zeros has codes 0. A row
    that holds a NaN or an infinity gets scale NaN, so that all of it reads as NaN; its codes mean
    nothing, and may differ from backend to backend.
    """
    wide = x.float()
    largest = wide.abs().amax(dim=1)
    is_finite = largest < torch.inf  # of all elements: a maximum keeps a NaN
    largest = largest.clamp(min=SMALLEST)
    # Tensors on both sides: torch divides by a plain number, and a plain number by a tensor, in two
    # steps, with two roundings.
    most = torch.full_like(largest, LARGEST_CODE)
    codes = (wide * (most / largest)[:, None]).round().where(is_finite[:, None], 0.0)
    return codes.to(torch.int8), (largest / most).masked_fill(~is_finite, torch.nan)


NUM_STEPS, LOWEST_CODE = 254.0, -128


def shifted_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, a scale and a shift for each row: `(codes + shift) * scale` is about the row.

    As `quantize_rows`, for rows whose numbers do not lie evenly around 0: what GELU returns, or a
    norm with its bias. The scale is the distance of the row's largest and smallest number, 0 being
    among them, over 254; the number times the scale's inverse is rounded, and the shift, [num_rows]
    int32, is that of the smallest number plus 128, so that its code is -128. Zeros stay zeros. An
    element is off by half a scale at most, up to half of what it is without shifts. A row whose
    distance is not a finite float32 reads as NaN.
    """
    wide = x.float()
    low, high = wide.amin(dim=1).clamp(max=0.0), wide.amax(dim=1).clamp(min=0.0)
    distance = high - low
    is_finite = distance < torch.inf
    distance = distance.clamp(min=SMALLEST)
    most = torch.full_like(distance, NUM_STEPS)
    inverse = (most / distance).where(is_finite, 0.0)
    lowest = (low * inverse).round().where(is_finite, 0.0)
    numbers = (wide * inverse[:, None]).round().where(is_finite[:, None], 0.0)
    shifts = (lowest - LOWEST_CODE).to(torch.int32)
    codes = (numbers - shifts[:, None]).to(torch.int8)
    return codes, (distance / most).masked_fill(~is_finite, torch.nan), shifts
