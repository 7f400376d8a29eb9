"""The threshold of the GPU's filters, exactly: what they keep begins at an element."""

import pytest
import torch
import triton
from torch import Tensor

from pagedrun.kernels.gpu.sampling import CAPACITY, find_thresholds
from pagedrun.kernels.reference.sampling import GREEDY_BELOW, _keep
from tests.support.every_pair import long_except

CHUNK = 1000


def thresholds(
    z: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, device: torch.device
) -> tuple[float, Tensor]:
    """Return the threshold of one row and the memory behind its short list."""
    chunks = torch.split(z / temperature, CHUNK)
    peaks = torch.stack([chunk.max() for chunk in chunks])[None].to(device)
    lists = torch.full((2, CAPACITY.value), torch.nan, device=device)
    lows = torch.empty(1, device=device)
    find_thresholds[(1,)](
        z[None].to(device),
        len(z),
        len(z),
        torch.tensor([temperature], device=device),
        torch.tensor([top_k], dtype=torch.int32, device=device),
        torch.tensor([top_p], device=device),
        torch.tensor([min_p], device=device),
        peaks,
        peaks.shape[1],
        lists,
        lows,
        CHUNKS=triton.next_power_of_2(peaks.shape[1]),
        TILE=4096,
        GREEDY_BELOW=GREEDY_BELOW,
        num_warps=8,
    )
    return lows.item(), lists[1]


def rows() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    steep = torch.randn(9_511, generator=generator) * 3
    tail = torch.randn(9_511, generator=generator) * 0.5 - 9.5  # heavy, beyond the reach
    tail[[7, 9_000]] = torch.tensor([0.0, 1.0])
    ties = torch.randint(-3, 4, (5003,), generator=generator).float()
    masked = steep.clone()
    masked[::2] = -torch.inf
    return {
        "steep": steep,
        "flat": torch.rand(9_511, generator=generator) * 0.5,  # more near values than the list has
        "tail": tail,
        "ties": ties,
        "zeros of both signs": torch.tensor([0.0, -0.0, 1.0, -0.0, -1.0]),
        "masked": masked,
        "one": torch.tensor([4.0]),
    }


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "temperature"),
    [
        (1, 1.0, 0.0, 1.0),
        (500, 1.0, 0.0, 1.0),
        (9000, 1.0, 0.0, 0.7),
        (2**31 - 1, 1.0, 0.0, 1.0),
        (0, 0.5, 0.0, 1.0),
        (0, 0.97, 0.0, 1.0),
        (0, 1e-6, 0.0, 1.0),
        (0, 0.9999, 0.01, 2.0),
        (0, 1.0, 0.3, 1.0),
        (800, 0.9, 0.001, 1.3),
        (9000, 0.999, 0.0, 1.0),
    ],
)
@pytest.mark.parametrize(
    "name", long_except(rows(), ["flat", "tail", "ties", "zeros of both signs"])
)
def test_keeps_what_the_reference_keeps(
    name: str,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
    gpu_device: torch.device,
) -> None:
    values = rows()[name]
    z = values / temperature
    low, behind = thresholds(values, temperature, top_k, top_p, min_p, gpu_device)
    kept = _keep(z, top_k, float(torch.tensor(top_p)), torch.tensor(min_p))
    assert torch.equal(z >= low, kept)
    assert behind.isnan().all(), "written past the list"


def test_rows_without_filters_keep_all_but_minus_infinity(gpu_device: torch.device) -> None:
    values = torch.tensor([1.0, -torch.inf, -3.4e38])
    low, _ = thresholds(values, 1.0, 0, 1.0, 0.0, gpu_device)
    assert (values >= low).tolist() == [True, False, True]
    low, _ = thresholds(values, 0.0, 1, 0.5, 0.5, gpu_device)  # greedy rows ignore filters
    assert (values >= low).tolist() == [True, False, True]
