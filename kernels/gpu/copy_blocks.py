"""Copies of blocks within one KV memory: what copy-on-write does."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE_BYTES = 8 << 10  # moved by one program at a time: four loads of 16 bytes a thread
_NUM_WARPS = 4


def copy_blocks(kv_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` over blocks `dst_ids` in every layer; see the reference.

    One launch whatever the number of layers and ids.
    """
    launch_copies(kv_cache, kv_cache, src_ids, dst_ids, kv_cache.device, None)


def launch_copies(
    source: Tensor,
    target: Tensor,
    src_ids: Tensor,
    dst_ids: Tensor,
    device: torch.device,
    max_programs: int | None,
) -> None:
    """Copy blocks of one KV memory over blocks of another, at most `max_programs` at a time.

    source, target: [num_layers, planes, num_blocks, ...], as of keys and values, contiguous and
    within reach of the device: on it, or in pinned host memory. src_ids, dst_ids: [num_copies]
    int64; they are sent to the device if they are elsewhere. What is copied are bytes, whatever
    they mean: not every chip knows float8.
    """
    assert source.is_contiguous(), "a copy would cost too much"
    assert target.is_contiguous(), "written in place"
    source, target = source.view(torch.uint8), target.view(torch.uint8)
    num_planes, block_bytes = source.shape[0] * source.shape[1], source[0, 0, 0].numel()
    num_chunks = triton.cdiv(block_bytes, _TILE_BYTES)
    num_tasks = num_planes * len(src_ids) * num_chunks
    if num_tasks:
        num_programs = num_tasks if max_programs is None else min(num_tasks, max_programs)
        _copy_blocks[(num_programs,)](
            source,
            target,
            src_ids.to(device, non_blocking=True),
            dst_ids.to(device, non_blocking=True),
            num_tasks,
            len(src_ids),
            num_chunks,
            source.stride(1),
            target.stride(1),
            block_bytes,
            TILE=_TILE_BYTES,
            num_warps=_NUM_WARPS,
            enable_fp_fusion=False,
        )


@triton.jit(do_not_specialize=["num_tasks", "num_ids"])
def _copy_blocks(
    source,
    target,
    src_ids,
    dst_ids,
    num_tasks,
    num_ids,
    num_chunks,
    source_plane,
    target_plane,
    block_bytes,
    TILE: tl.constexpr,
):
    """Copy chunk after chunk; neighbouring programs take neighbouring chunks of one plane."""
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        chunk = task % num_chunks
        index = task // num_chunks % num_ids
        plane = (task // num_chunks // num_ids).to(tl.int64)
        places = chunk * TILE + tl.arange(0, TILE)
        inside = places < block_bytes
        src_start = plane * source_plane + tl.load(src_ids + index) * block_bytes
        dst_start = plane * target_plane + tl.load(dst_ids + index) * block_bytes
        moved = tl.load(source + src_start + places, mask=inside)
        tl.store(target + dst_start + places, moved, mask=inside)
