"""Weights out of codes and scales."""

import torch
from torch import Tensor


def dequantize(
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor,
    rows_per_scale: int,
    group_of: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return `(code - zero) * scale`, computed in float32 and rounded once.

    codes: [num_rows, num_columns] int8 or float8_e4m3fn. scales: [num_scale_rows, num_groups]
    float32; zeros: the same. Row n of codes has row n // rows_per_scale of these, column k the
    group group_of[k]; group_of: [num_columns] int64. Returns [num_rows, num_columns] in `dtype`.
    """
    rows = torch.arange(len(codes), device=codes.device) // rows_per_scale
    wide = codes.float() - zeros[rows][:, group_of]
    return (wide * scales[rows][:, group_of]).to(dtype)
