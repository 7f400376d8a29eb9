"""Copies of blocks between two KV memories."""

from typing import Any

import numba
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, spread


def swap_blocks(src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` of one KV memory over `dst_ids` of another; see the reference."""
    assert src_cache.is_contiguous(), "a copy would cost too much"
    assert dst_cache.is_contiguous(), "written in place"
    source, destination = _by_block(src_cache), _by_block(dst_cache)
    spread(len(src_ids) * source.shape[0] * source.shape[2])
    _copy(source, destination, as_array(src_ids), as_array(dst_ids))


def _by_block(cache: Tensor) -> NDArray[Any]:
    num_layers, two, num_blocks = cache.shape[:3]
    return as_array(cache.view(num_layers * two, num_blocks, -1))


@kernel
def _copy(source: Any, destination: Any, src_ids: Any, dst_ids: Any) -> None:
    num_ids = src_ids.shape[0]
    for task in numba.prange(source.shape[0] * num_ids):
        plane, index = task // num_ids, task % num_ids
        block, target = source[plane, src_ids[index]], destination[plane, dst_ids[index]]
        for i in range(target.shape[0]):
            target[i] = block[i]
