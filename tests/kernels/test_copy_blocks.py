from types import ModuleType

import pytest
import torch

from pagedrun.kernels import cpu, reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", [cpu, reference])
@pytest.mark.parametrize("num_copies", [0, 1, 4])
def test_copies_these_blocks_and_no_other(
    num_copies: int, backend: ModuleType, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    kv_cache = torch.randn(3, 2, 9, 2, 5, 16).to(dtype)
    src_ids = torch.tensor([8, 0, 0, 5])[:num_copies]
    dst_ids = torch.tensor([1, 7, 2, 3])[:num_copies]
    expected = kv_cache.clone()
    for source, target in zip(src_ids.tolist(), dst_ids.tolist(), strict=True):
        expected[:, :, target] = kv_cache[:, :, source]
    backend.copy_blocks(kv_cache, src_ids, dst_ids)
    assert torch.equal(kv_cache, expected)
