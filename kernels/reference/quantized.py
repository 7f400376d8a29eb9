"""Products of quantized weights with inputs rounded to int8: the definition of their bytes."""

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.quantized_weight import PackedWeight
from pagedrun.kernels.reference.linear import quantize_rows

# Inputs that share a scale: at most as many as a group of weights has, but for groups of sixteen.
MOST_INPUTS, LEAST_INPUTS = 128, 32


def block_sizes(weight: PackedWeight) -> tuple[int, int]:
    """Return the inputs that share a scale, and the inputs whose products are summed as integers.

    Both are neighbors, and divide a group of weights or are divided by it.
    """
    has_one_group = weight.scales.values.shape[1] == 1
    group = MOST_INPUTS if has_one_group else weight.group_size
    inputs = next(size for size in (MOST_INPUTS, 64, LEAST_INPUTS, 16) if group % size == 0)
    return max(inputs, LEAST_INPUTS), inputs


def quantize_blocks(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return codes and scales of blocks of `size` inputs, see `quantize_rows`.

    x: [num_rows, in_features]. Returns codes [num_rows, num_blocks, size] int8, with zeros beyond
    the last input, and scales [num_rows, num_blocks] float32. A block with a NaN or an infinity has
    codes 0 and scale NaN.
    """
    padded = functional.pad(x, (0, -x.shape[1] % size))
    codes, scales = quantize_rows(padded.reshape(-1, size))
    return codes.view(len(x), -1, size), scales.view(len(x), -1)


def multiply_int8(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias` in the dtype of x, with inputs rounded to int8.

    weight: integer codes. In float32, each output starts at 0 and becomes, for each block of inputs
    in ascending order, `fma(sum of products of codes, input scale * weight scale, output)`; with
    minima or zero points then `fma(-shift, input scale * sum of input codes, output)`, where a
    shift is the minimum, or the zero point times the weight scale. The bias is added last.
    """
    weight = weight.by_row()
    scale_size, sum_size = block_sizes(weight)
    inputs, input_scales = quantize_blocks(x, scale_size)
    inputs = inputs.reshape(len(x), -1, sum_size)
    width = inputs.shape[1] * sum_size
    codes = functional.pad(weight.codes[:].float(), (0, width - weight.in_features))
    sums = torch.einsum(
        "mbk,nbk->bmn", inputs.double(), codes.view(len(codes), -1, sum_size).double()
    )
    scales = weight.scales.to_float32()
    shifts = None if weight.minima is None else weight.minima.to_float32()
    if weight.zeros is not None:
        shifts = weight.zeros.float() * scales
    total = torch.zeros(len(x), len(codes))
    for block in range(inputs.shape[1]):
        group = 0 if scales.shape[1] == 1 else block * sum_size // weight.group_size
        scale = input_scales[:, block * sum_size // scale_size]
        total = fused(sums[block].float(), scale[:, None] * scales[:, group], total)
        if shifts is not None:
            scaled = scale * inputs[:, block].sum(1).float()
            total = fused(scaled[:, None].expand_as(total), -shifts[:, group], total)
    return (total if bias is None else total + bias.float()).to(x.dtype)


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return `a * b + c` of float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there, so that rounding it again
    gives the nearest float32 (Boldo and Melquiond 2008, "Emulation of a FMA and correctly rounded
    sums: proved algorithms using rounding to odd").
    """
    product, wide = a.double() * b.double(), c.double()
    total = product + wide
    part = total - product
    error = (product - (total - part)) + (wide - part)
    bits = total.view(torch.int64)
    away = torch.where((error > 0) == (total > 0), 1, -1)
    bits = torch.where((error != 0) & (bits % 2 == 0), bits + away, bits)
    return bits.view(torch.float64).float()
