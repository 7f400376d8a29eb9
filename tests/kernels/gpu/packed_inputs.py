"""Inputs of quantized products on the interpreted GPU."""

import torch
from torch import Tensor

from pagedrun.kernels.quantized_weight import PackedWeight

BF16, FP16 = torch.bfloat16, torch.float16


def moved(weight: PackedWeight, device: torch.device) -> PackedWeight:
    """Return a weight on the device."""
    minima, zeros = weight.minima, weight.zeros
    return PackedWeight(
        weight.codes[:].to(device),
        weight.num_bits,
        weight.scales.mapped(lambda each: each.to(device)),
        weight.group_size,
        weight.rows_per_scale,
        None if zeros is None else zeros.to(device),
        None if minima is None else minima.mapped(lambda each: each.to(device)),
    )


def inputs(num_rows: int, columns: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(num_rows, columns, generator=torch.Generator().manual_seed(8)).to(dtype)
