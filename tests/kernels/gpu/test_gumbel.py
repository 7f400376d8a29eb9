import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from pagedrun.kernels.gpu.sampling import exact_noise, noise

EDGES = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 2**29 - 1, 2**32 - 2**29, 2**32 - 2, 2**32 - 1]


# Triton 3.6 compiles no annotation but its own.
@triton.jit  # type: ignore[untyped-decorator]
def both(words, narrow, wide, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    drawn = tl.load(words + at).to(tl.uint32)
    tl.store(narrow + at, noise(drawn))
    tl.store(wide + at, exact_noise(drawn))


def test_noise_in_float32_and_in_float64(gpu_device: torch.device) -> None:
    size = 4096
    words = np.random.default_rng(0).integers(0, 2**32, size)
    words[: len(EDGES)] = EDGES
    for power in range(32):  # towards both ends
        words[100 + power], words[200 + power] = 2**power, 2**32 - 2**power
    narrow = torch.empty(size, dtype=torch.float32, device=gpu_device)
    wide = torch.empty(size, dtype=torch.float64, device=gpu_device)
    both[(1,)](torch.tensor(words, device=gpu_device), narrow, wide, SIZE=size)
    u = (words + 0.5) / 2**32
    expected = -np.log(-np.log(u))
    assert np.abs(wide.cpu().numpy() - expected).max() < 1e-13
    assert np.abs(narrow.cpu().numpy() - expected).max() < 1e-5
    assert narrow.cpu().numpy().max() == pytest.approx(22.87, abs=0.01)
