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
@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_there_and_back_restores_the_bytes(
    block_size: int, backend: Backend, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    torch.manual_seed(0)
    is_on_gpu = isinstance(backend, GpuBackend) and gpu_device.type != "cpu"
    blocks = torch.randn(2, 2, 11, 3, block_size, 16).to(dtype)
    blocks[0, 0, 4] = torch.nan  # bytes, not numbers: a half-filled block holds anything
    blocks = blocks.to(gpu_device) if is_on_gpu else blocks
    host = torch.zeros(2, 2, 6, 3, block_size, 16, dtype=dtype, pin_memory=is_on_gpu)
    bits = torch.int16 if dtype is torch.bfloat16 else torch.int32
    before = blocks.clone()
    out_ids, host_ids = torch.tensor([4, 10, 0]), torch.tensor([5, 0, 2])
    backend.swap_blocks(blocks, host, out_ids, host_ids)
    if is_on_gpu:
        torch.cuda.synchronize()
    assert torch.equal(blocks.view(bits), before.view(bits))
    assert (host[:, :, [1, 3, 4]] == 0).all()
    blocks[:, :, out_ids] = 0
    backend.swap_blocks(host, blocks, host_ids, out_ids)
    assert torch.equal(blocks.view(bits), before.view(bits))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_quantised_pool_is_swapped_byte_by_byte(
    dtype: torch.dtype, gpu_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out and in, whatever a byte means, NaN among it: chips before sm_89 have no float8."""
    if gpu_device.type == "cpu":
        refuse_float8(monkeypatch)
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(1, 16, 16)
    blocks = torch.zeros(2, 2, 3, 1, 16, 16, dtype=torch.uint8, device=gpu_device)
    blocks[:, :, 2] = every.to(gpu_device)
    is_pinned = gpu_device.type != "cpu"
    host = torch.zeros(2, 2, 4, 1, 16, 16, dtype=torch.uint8, pin_memory=is_pinned)
    pool, outside = blocks.view(dtype), host.view(dtype)
    GpuBackend.swap_blocks(pool, outside, torch.tensor([2]), torch.tensor([1]))
    GpuBackend.swap_blocks(outside, pool, torch.tensor([1]), torch.tensor([0]))
    if is_pinned:
        torch.cuda.synchronize()
    assert (host[:, :, 1] == every).all()
    assert not host[:, :, [0, 2, 3]].any()
    assert torch.equal(blocks[:, :, 0], blocks[:, :, 2])
    assert not blocks[:, :, 1].any()


def test_more_work_than_programs(gpu_device: torch.device) -> None:
    """Few programs do all the pieces: 3 layers, 70 blocks, two tiles each."""
    torch.manual_seed(0)
    blocks = torch.randint(-128, 128, (3, 2, 80, 1, 96, 100)).to(gpu_device, torch.int8)
    host = torch.zeros(3, 2, 90, 1, 96, 100, dtype=torch.int8, pin_memory=gpu_device.type != "cpu")
    src_ids, dst_ids = torch.randperm(80)[:70], torch.randperm(90)[:70]
    GpuBackend.swap_blocks(blocks, host, src_ids, dst_ids)
    if gpu_device.type != "cpu":
        torch.cuda.synchronize()
    assert torch.equal(host[:, :, dst_ids], blocks.cpu()[:, :, src_ids])


@pytest.mark.gpu
def test_refuses_memory_that_is_not_pinned() -> None:
    blocks = torch.zeros(1, 2, 2, 1, 16, 16, device="cuda")
    with pytest.raises(AssertionError):
        GpuBackend.swap_blocks(blocks, blocks.cpu(), torch.tensor([0]), torch.tensor([1]))
