"""One layer's keys and values, as ops read and write them."""

from typing import NamedTuple

from torch import Tensor

from pagedrun.kernels.kv_scales import KVScales


class KVLayer(NamedTuple):
    """One layer's memory: keys and values [num_blocks, num_kv_heads, block_size, head_dim].

    Slot `block_id * block_size + offset` is one token's place in it. `scales` belong to a cache in
    int8 or float8_e4m3fn, None to others.
    """

    keys: Tensor
    values: Tensor
    scales: KVScales | None = None
