"""Copies of blocks between the KV memory of the device and one in pinned host memory.

A kernel on the device reads or writes the host's memory over the bus itself. The ids on either
side are scattered, and a block is as many pieces as there are planes (two for each layer), so the
copy engine would need one call for each piece, of some ten KiB, and a call costs more than moving
that. Gathering into a staging buffer first saves calls on the device's side only. One launch has
neither cost, needs no ids on the host, and does not wait: it goes to the current stream, and the
caller makes another stream current to swap beside the computation.
"""

from torch import Tensor

from pagedrun.kernels.gpu.copy_blocks import launch_copies

# The bus needs few programs to be full, and what they occupy is lost to the computation beside
# them: each has 8 KiB on its way. Not measured yet.
_MAX_PROGRAMS = 64


def swap_blocks(src_cache: Tensor, dst_cache: Tensor, src_ids: Tensor, dst_ids: Tensor) -> None:
    """Copy blocks `src_ids` of one KV memory over `dst_ids` of another; see the reference.

    Returns before the copies are made; they are ordered by the current stream. A memory that is
    not on the device must be pinned.
    """
    device = src_cache.device if src_cache.device.type != "cpu" else dst_cache.device
    for cache in (src_cache, dst_cache):
        assert cache.device == device or cache.is_pinned(), "the device cannot reach this memory"
    launch_copies(src_cache, dst_cache, src_ids, dst_ids, device, _MAX_PROGRAMS)
