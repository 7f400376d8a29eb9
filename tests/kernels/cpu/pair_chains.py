"""Sums of products of bfloat16 in the order of `vdpbf16ps` chains, written once more and simply."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.simd.block_product import block_product

_LANES = 16
_multiply = block_product(1, 1)


def pair_chains(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`: chains of 512 inputs, or of 1,024 where there are more than so
    many, added up one after the other."""
    num_columns = x.shape[1]
    block = 512 if num_columns <= 1024 else 1024
    sums = torch.zeros(len(x), len(weight))
    for start in range(0, num_columns, block):
        part = slice(start, min(num_columns, start + block))
        sums += _chains(x[:, part], weight[:, part])
    return (sums if bias is None else sums + bias.float()).bfloat16()


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
