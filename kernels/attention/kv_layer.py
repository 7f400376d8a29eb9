"""One layer's keys and values, as ops read and write them."""

from typing import NamedTuple

from torch import Tensor

from pagedrun.kernels.attention.kv_scales import KVScales


class KVLayer(NamedTuple):
    """One layer's memory: keys and values [num_blocks, num_kv_heads, block_size, head_dim].

    Slot `block_id * block_size + offset` is one token's place in it. `scales` belong to a cache in
    int8 or float8_e4m3fn, None to others.
    """

    keys: Tensor
    values: Tensor
    scales: KVScales | None = None

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.keys.shape[2]

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.keys.shape[3]

    @property
    def without_heads(self) -> "KVLayer":
        """The same memory with none of its heads: what takes queries alone writes nothing to it."""
        scales = self.scales
        if scales is not None:
            scales = KVScales(scales.keys[:, :0], scales.values[:, :0])
        return KVLayer(self.keys[:, :0], self.values[:, :0], scales)

    def num_query_heads(self, qkv: Tensor) -> int:
        """Return how many heads are left for queries in rows of all query, key and value heads."""
        return qkv.shape[1] // self.head_dim - 2 * self.num_kv_heads
