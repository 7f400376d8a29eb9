"""KVCacheSpec: what a group of layers keeps of each token in the pool; knows no torch."""

from dataclasses import dataclass, replace

from pagedrun.paged.values.precision import DTYPE_BYTES, KV_DTYPES

_SCALE_BYTES = 4  # of one float32 for each head of each token


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Layers that have the same needs, and therefore one block table a sequence between them.

    `dtype` is what keys and values are stored in, by torch's name. Tokens further back than
    `window` are read by none of the layers; None if they read the whole context. A group without
    layers stores nothing: its blocks are names, by which a model that has only windows plans.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    window: int | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether each head of each token has a scale of its own (see `KVScales`)."""
        return self.dtype in KV_DTYPES.values()

    @property
    def reads_together(self) -> bool:
        """Whether rows may read what they share together: behind a window each begins elsewhere."""
        return self.window is None and self.num_layers > 0

    @property
    def bytes_per_layer(self) -> int:
        """Bytes of keys and values of one token in one layer, with their scales."""
        head = self.head_dim * DTYPE_BYTES.get(self.dtype, 1)
        return 2 * self.num_kv_heads * (head + self.is_quantized * _SCALE_BYTES)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, with their scales."""
        return self.num_layers * self.bytes_per_layer

    def stored_as(self, dtype: str) -> "KVCacheSpec":
        """Return the same in another number format: torch's name, or the flag's for a quantised
        one."""
        return replace(self, dtype=KV_DTYPES.get(dtype, dtype))
