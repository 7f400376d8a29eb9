"""What attention asks of torch's matrix products, so that a row's bytes are its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MIN_ROWS = 16  # fewer give other bits in float32, and other code paths


def padded_rows(num_rows: int) -> int:
    """Round up to one of few heights: oneDNN compiles a product anew for each shape it meets."""
    return MIN_ROWS if num_rows <= MIN_ROWS else -(-num_rows // 32) * 32


@contextmanager
def multiply_in(dtype: torch.dtype) -> Iterator[None]:
    """Let float32 products run on the bfloat16 units if `dtype` is bfloat16, else exactly.

    float32 tensors that hold bfloat16 values lose nothing by it; sums and results stay float32.
    """
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    setting.fp32_precision = "bf16" if dtype is torch.bfloat16 else "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = before
