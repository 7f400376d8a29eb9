from types import ModuleType

import pytest
import torch

from pagedrun.kernels import cpu, reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", [cpu, reference])
@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_there_and_back_restores_the_bytes(
    block_size: int, backend: ModuleType, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    device = torch.randn(2, 2, 11, 3, block_size, 16).to(dtype)
    device[0, 0, 4] = torch.nan  # bytes, not numbers: a half-filled block holds anything
    host = torch.zeros(2, 2, 6, 3, block_size, 16, dtype=dtype)
    bits = torch.int16 if dtype is torch.bfloat16 else torch.int32
    before = device.clone()
    out_ids, host_ids = torch.tensor([4, 10, 0]), torch.tensor([5, 0, 2])
    backend.swap_blocks(device, host, out_ids, host_ids)
    assert torch.equal(device.view(bits), before.view(bits))
    assert (host[:, :, [1, 3, 4]] == 0).all()
    device[:, :, out_ids] = 0
    backend.swap_blocks(host, device, host_ids, out_ids)
    assert torch.equal(device.view(bits), before.view(bits))
