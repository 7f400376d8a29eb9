import pytest
import torch

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import GPU_MARKS
from tests.without_float8 import refuse_float8

BACKENDS = [CpuBackend(), Backend(), pytest.param(GpuBackend(), marks=GPU_MARKS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda each: each.name)
@pytest.mark.parametrize("num_copies", [0, 1, 4])
def test_copies_these_blocks_and_no_other(
    num_copies: int, backend: Backend, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    torch.manual_seed(0)
    device = gpu_device if isinstance(backend, GpuBackend) else torch.device("cpu")
    kv_cache = torch.randn(3, 2, 9, 2, 5, 16).to(device, dtype)
    src_ids = torch.tensor([8, 0, 0, 5], device=device)[:num_copies]
    dst_ids = torch.tensor([1, 7, 2, 3], device=device)[:num_copies]
    expected = kv_cache.clone()
    for source, target in zip(src_ids.tolist(), dst_ids.tolist(), strict=True):
        expected[:, :, target] = kv_cache[:, :, source]
    backend.copy_blocks(kv_cache, src_ids, dst_ids)
    assert torch.equal(kv_cache, expected)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_quantised_pool_is_copied_byte_by_byte(
    dtype: torch.dtype, gpu_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a byte means, NaN among it: chips before sm_89 have no float8."""
    if gpu_device.type == "cpu":
        refuse_float8(monkeypatch)
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).to(gpu_device)
    kv_cache = torch.zeros(2, 2, 3, 1, 16, 16, dtype=torch.uint8, device=gpu_device)
    kv_cache[:, :, 2] = every.view(1, 16, 16)
    GpuBackend.copy_blocks(kv_cache.view(dtype), torch.tensor([2]), torch.tensor([0]))
    assert torch.equal(kv_cache[:, :, 0], kv_cache[:, :, 2])
    assert not kv_cache[:, :, 1].any()


def test_blocks_larger_than_a_tile_arrive_whole(gpu_device: torch.device) -> None:
    torch.manual_seed(0)
    kv_cache = torch.randn(2, 2, 4, 3, 65, 48, device=gpu_device)  # 37,440 bytes a block
    expected = kv_cache.clone()
    expected[:, :, 1] = kv_cache[:, :, 2]
    GpuBackend.copy_blocks(kv_cache, torch.tensor([2]), torch.tensor([1]))  # ids may be on the host
    assert torch.equal(kv_cache, expected)


def test_pools_of_more_than_two_to_the_31_elements(gpu_device: torch.device) -> None:
    """Single bytes; of a memory that the system gives out by the page, few are touched."""
    num_blocks = 2**17 + 5
    kv_cache = torch.empty(3, 2, num_blocks, 1, 64, 64, dtype=torch.int8, device=gpu_device)
    assert kv_cache[2, 1].storage_offset() > 2**31
    last = num_blocks - 1
    kv_cache[:, 0, 3], kv_cache[:, 1, 3], kv_cache[:, :, 0] = 11, 22, 33
    kv_cache[:, :, [last, 1]] = 0
    ids = torch.tensor([3, 0], device=gpu_device), torch.tensor([last, 1], device=gpu_device)
    GpuBackend.copy_blocks(kv_cache, *ids)
    assert (kv_cache[:, 0, last] == 11).all()
    assert (kv_cache[:, 1, last] == 22).all()
    assert (kv_cache[:, :, 1] == 33).all()
