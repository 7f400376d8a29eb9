"""mask_logits: what a bitmask does not allow is -inf, and nothing else changes."""

import numpy as np
import pytest
import torch

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 320, 40_001])
def test_bits_say_what_is_left(vocab_size: int, dtype: torch.dtype) -> None:
    random = np.random.default_rng(vocab_size)
    allowed = random.random((3, vocab_size)) < [[0.5], [0.01], [1.0]]
    padded = np.ones(
        (3, -(-vocab_size // 32) * 32), dtype=np.uint8
    )  # bits past the end say nothing
    padded[:, :vocab_size] = allowed
    bitmask = torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))
    logits = torch.from_numpy(random.standard_normal((5, vocab_size))).to(dtype)
    logits[4, 0] = torch.nan
    rows = torch.tensor([3, 0, 1])
    expected = logits.clone()
    expected[rows] = logits[rows].masked_fill(torch.from_numpy(~allowed), -torch.inf)
    for backend in (Backend, CpuBackend):
        masked = logits.clone()
        backend.mask_logits(masked, rows, bitmask)
        assert torch.equal(masked.view(torch.uint8), expected.view(torch.uint8))


def test_rows_without_a_bitmask_and_bitmasks_without_a_token() -> None:
    """Rows without a bitmask stay as they are, and an empty mask leaves nothing."""
    logits = torch.randn(4, 40)
    none = torch.zeros((0, 2), dtype=torch.int32)
    empty = torch.zeros((1, 2), dtype=torch.int32)
    for backend in (Backend, CpuBackend):
        masked = logits.clone()
        backend.mask_logits(masked, torch.zeros(0, dtype=torch.int64), none)
        assert torch.equal(masked, logits)
        backend.mask_logits(masked, torch.tensor([2]), empty)
        assert bool((masked[2] == -torch.inf).all())
        assert torch.equal(masked[[0, 1, 3]], logits[[0, 1, 3]])
