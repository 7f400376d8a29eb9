"""Writers of weights in eight bits."""

import torch
from torch import Tensor

from tests.support.quantized_checkpoints import Stored, Writer

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


def blocks(
    rows: int,
    columns: int,
    dtype: torch.dtype = torch.float8_e4m3fn,
    name: str = "weight_scale_inv",
    scale_dtype: torch.dtype = torch.float32,
) -> Writer:
    """A scale for each block of rows and columns, the last of them smaller; 0: one block."""

    def writer(weight: Tensor) -> Stored:
        height, width = rows or weight.shape[0], columns or weight.shape[1]
        codes = torch.empty(weight.shape, dtype=dtype)
        grid = [-(-size // step) for size, step in zip(weight.shape, (height, width), strict=True)]
        scales, weights = torch.empty(*grid, dtype=scale_dtype), torch.empty_like(weight)
        for i in range(grid[0]):
            for j in range(grid[1]):
                at = (slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width))
                scales[i, j] = weight[at].abs().max() / LARGEST[dtype]
                if scale_dtype is torch.float8_e8m0fnu:  # powers of two, not to overflow
                    scales[i, j] = scales[i, j].float() * 2
                scaled = weight[at] / scales[i, j].float()
                codes[at] = (scaled.round() if dtype is torch.int8 else scaled).to(dtype)
                weights[at] = codes[at].float() * scales[i, j].float()
        return {"weight": codes, name: scales}, weights

    return writer


def shaped(writer: Writer, name: str, *shape: int) -> Writer:
    """Store the scales called `name` in another shape."""

    def reshaped(weight: Tensor) -> Stored:
        stored, weights = writer(weight)
        return {**stored, name: stored[name].reshape(shape)}, weights

    return reshaped
