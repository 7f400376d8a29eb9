"""Rows of numbers as int8, each with a scale of its own."""

import torch
from torch import Tensor

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
