"""Weights out of bytes of two codes each, whose numbers are in a table."""

import torch
from torch import Tensor


def unpack_pairs(pairs: Tensor, table: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `table[code] * scale`, computed in float32 and rounded once.

    pairs: [num_rows, num_bytes] uint8, of each byte the low half is the first code. table: [16]
    float32. scales: [num_rows, num_groups] float32, each for as many neighbouring codes of its row.
    Returns [num_rows, 2 * num_bytes] in `dtype`.
    """
    codes = torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1).long()
    grouped = torch.unflatten(table[codes], 1, (scales.shape[1], -1))
    return (grouped * scales[:, :, None]).flatten(1).to(dtype)
