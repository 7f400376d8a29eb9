"""Products of codes in the order of `vdpbf16ps` chains, written once more and simply."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.simd.block_product import block_product
from pagedrun.kernels.quantized_weight import PackedWeight

_LANES = 16
_multiply = block_product(1, 1)


def pair_chains(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`: chains over at most 128 inputs of a group, each times the
    group's scale, added up one after the other, and the sum of its inputs times what shifts codes.
    """
    weight = weight.by_row()
    scales = weight.scales.to_float32()
    shifts = None if weight.minima is None else -weight.minima.to_float32()
    if weight.zeros is not None:
        shifts = -weight.zeros.float() * scales
    codes = weight.codes[:].float().bfloat16()
    totals = torch.zeros(len(x), len(codes))
    size = _chain_inputs(weight)
    for start in range(0, x.shape[1], size):
        part = slice(start, min(x.shape[1], start + size))
        group = min(start // weight.group_size, scales.shape[1] - 1)
        totals = _fused(_chains(x[:, part], codes[:, part]), scales[:, group], totals)
        if shifts is not None:
            sums = torch.zeros(len(x))
            for column in x[:, part].float().T:
                sums = sums + column
            totals = _fused(sums[:, None], shifts[:, group], totals)
    return (totals if bias is None else totals + bias.float()).bfloat16()


def _chain_inputs(weight: PackedWeight) -> int:
    if weight.num_bits == 6:
        return 16
    is_whole = weight.scales.values.shape[1] == 1
    return next(size for size in (128, 64, 32) if is_whole or weight.group_size % size == 0)


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return `a * b + c` rounded once, but where float64 rounds to a tie."""
    return (a.double() * b.double() + c.double()).float()


def _chains(x: Tensor, weight: Tensor) -> Tensor:
    even = x.shape[1] % 2
    rows = torch.nn.functional.pad(weight, (0, even, 0, -len(weight) % _LANES))
    words = as_array(rows.contiguous()).view(np.uint32)
    panels = words.reshape(-1, _LANES, words.shape[1]).transpose(0, 2, 1).copy()
    sums = np.zeros((len(x), len(rows)), np.float32)
    _add(as_array(torch.nn.functional.pad(x, (0, even)).contiguous()), panels, sums)
    return torch.from_numpy(sums[:, : len(weight)].copy())


@numba.njit  # type: ignore[untyped-decorator]
def _add(x: Any, panels: Any, sums: Any) -> None:
    num_pairs, width = panels.shape[1], sums.shape[1]
    for row in range(x.shape[0]):
        for panel in range(panels.shape[0]):
            _multiply(
                x,
                row * x.shape[1],
                0,
                2,
                panels,
                panel * num_pairs * _LANES,
                _LANES,
                num_pairs,
                sums,
                row * width + panel * _LANES,
                _LANES,
            )
