"""Copies of blocks within a pool, and between a pool and the memory of the host."""

import pytest
import torch

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend
from tests.kernels.conftest import GPU_MARKS
from tests.support.without_float8 import refuse_float8

EACH_BACKEND = pytest.mark.parametrize(
    "backend",
    [CpuBackend(), Backend(), pytest.param(GpuBackend(), marks=GPU_MARKS)],
    ids=lambda each: each.name,
)
DTYPES = [torch.float32, torch.bfloat16]


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", DTYPES)
@EACH_BACKEND
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


@pytest.mark.parametrize("dtype", DTYPES)
@EACH_BACKEND
@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_swapped_out_and_in_the_bytes_are_the_same(
    block_size: int, backend: Backend, dtype: torch.dtype, gpu_device: torch.device
) -> None:
    torch.manual_seed(0)
    device = gpu_device if isinstance(backend, GpuBackend) else torch.device("cpu")
    blocks = torch.randn(2, 2, 11, 3, block_size, 16).to(dtype)
    blocks[0, 0, 4] = torch.nan  # bytes, not numbers: a half-filled block holds anything
    blocks = blocks.to(device)
    is_pinned = device.type != "cpu"
    host = torch.zeros(2, 2, 6, 3, block_size, 16, dtype=dtype, pin_memory=is_pinned)
    before = blocks.clone()
    out_ids, host_ids = torch.tensor([4, 10, 0]), torch.tensor([5, 0, 2])
    backend.swap_blocks(blocks, host, out_ids, host_ids)
    wait(device)
    assert torch.equal(blocks.view(torch.uint8), before.view(torch.uint8))
    assert (host[:, :, [1, 3, 4]] == 0).all()
    blocks[:, :, out_ids] = 0
    backend.swap_blocks(host, blocks, host_ids, out_ids)
    assert torch.equal(blocks.view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_quantized_pool_is_moved_byte_by_byte(
    dtype: torch.dtype, gpu_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied, swapped out and in, whatever a byte means: chips before sm_89 have no float8."""
    if gpu_device.type == "cpu":
        refuse_float8(monkeypatch)
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(1, 16, 16)
    blocks = torch.zeros(2, 2, 4, 1, 16, 16, dtype=torch.uint8, device=gpu_device)
    blocks[:, :, 2] = every.to(gpu_device)
    is_pinned = gpu_device.type != "cpu"
    host = torch.zeros(2, 2, 4, 1, 16, 16, dtype=torch.uint8, pin_memory=is_pinned)
    pool, outside = blocks.view(dtype), host.view(dtype)
    GpuBackend.copy_blocks(pool, torch.tensor([2]), torch.tensor([3]))
    GpuBackend.swap_blocks(pool, outside, torch.tensor([2]), torch.tensor([1]))
    GpuBackend.swap_blocks(outside, pool, torch.tensor([1]), torch.tensor([0]))
    wait(gpu_device)
    assert (host[:, :, 1] == every).all()
    assert not host[:, :, [0, 2, 3]].any()
    for block in (0, 3):
        assert torch.equal(blocks[:, :, block], blocks[:, :, 2])
    assert not blocks[:, :, 1].any()


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


def test_more_work_than_programs(gpu_device: torch.device) -> None:
    """Few programs do all the pieces: 3 layers, 70 blocks, two tiles each."""
    torch.manual_seed(0)
    blocks = torch.randint(-128, 128, (3, 2, 80, 1, 96, 100)).to(gpu_device, torch.int8)
    host = torch.zeros(3, 2, 90, 1, 96, 100, dtype=torch.int8, pin_memory=gpu_device.type != "cpu")
    src_ids, dst_ids = torch.randperm(80)[:70], torch.randperm(90)[:70]
    GpuBackend.swap_blocks(blocks, host, src_ids, dst_ids)
    wait(gpu_device)
    assert torch.equal(host[:, :, dst_ids], blocks.cpu()[:, :, src_ids])


@pytest.mark.gpu
def test_refuses_memory_that_is_not_pinned() -> None:
    blocks = torch.zeros(1, 2, 2, 1, 16, 16, device="cuda")
    with pytest.raises(AssertionError):
        GpuBackend.swap_blocks(blocks, blocks.cpu(), torch.tensor([0]), torch.tensor([1]))
