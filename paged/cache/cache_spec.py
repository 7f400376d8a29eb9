"""Specifications of caches: sizes of keys and values by token, and of states by sequence.

Imports no torch.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagedrun.paged.values.engine_config import DTYPE_BYTES, KV_DTYPES

_SCALE_BYTES = 4  # of one float32 for each head of each token


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Sizes of keys and values of a group of layers that share a block table per sequence.

    `dtype`: storage format, by torch's name. The layers read the last `window` tokens; None if they
    read the whole context. A group without layers stores nothing; its blocks only carry the keys of
    prefixes, for a model in which every layer has a window. `is_transient`: keys and values of a
    layer are kept while it computes a step, so all layers share the memory of one; steps are whole
    prompts, computed layer by layer.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    window: int | None = None
    is_transient: bool = False

    @property
    def num_stored_layers(self) -> int:
        """Layers with memory of their own."""
        return min(self.num_layers, 1) if self.is_transient else self.num_layers

    @property
    def is_quantized(self) -> bool:
        """True with a scale for each head of each token (see `KVScales`)."""
        return self.dtype in KV_DTYPES.values()

    @property
    def reads_together(self) -> bool:
        """True if rows can read a shared prefix together; windows begin at different tokens."""
        return self.window is None and self.num_layers > 0

    @property
    def bytes_per_layer(self) -> int:
        """Bytes of keys and values of one token in one layer, with their scales."""
        head = self.head_dim * DTYPE_BYTES.get(self.dtype, 1)
        return 2 * self.num_kv_heads * (head + self.is_quantized * _SCALE_BYTES)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, with their scales."""
        return self.num_stored_layers * self.bytes_per_layer

    def stored_as(self, dtype: str) -> "KVCacheSpec":
        """Return the spec with another number format, by torch's name or, if quantized, by the
        flag's value."""
        return replace(self, dtype=KV_DTYPES.get(dtype, dtype))


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Size of the pool of a group. `bytes_per_token`: in all `num_layers`. The layers see the last
    `window` tokens, None: all."""

    num_layers: int
    window: int | None
    num_blocks: int
    bytes_per_token: int

    @classmethod
    def of_all(cls, specs: Seq[KVCacheSpec], sizes: Seq[int]) -> "tuple[PoolShape, ...]":
        """Return the shapes of pools with these specs and numbers of blocks."""
        return tuple(
            cls(spec.num_layers, spec.window, num_blocks, spec.bytes_per_token)
            for spec, num_blocks in zip(specs, sizes, strict=True)
        )

    def num_bytes(self, block_size: int) -> int:
        """Return the bytes of the pool."""
        return self.num_blocks * block_size * self.bytes_per_token


class KVLayerIndex(NamedTuple):
    """Group of an attention layer, and its index in the group."""

    group: int
    layer: int


@dataclass(frozen=True, slots=True)
class StateArray:
    """Name, shape and dtype, as torch names it, of a state array."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Arrays of one slot in one recurrent layer: the state of a sequence.

    Their size does not depend on the number of tokens. A state of Transformers `is_opaque`: one
    object for each sequence with all layers, at most as large as the arrays, and `bytes_per_token`
    more for each token.
    """

    arrays: tuple[StateArray, ...]
    bytes_per_token: int = 0
    is_opaque: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays of a slot in this layer."""
        return sum(array.num_bytes for array in self.arrays)

    def num_bytes_behind(self, num_tokens: int) -> int:
        """Return the bytes of a slot in this layer after `num_tokens` tokens."""
        return self.num_bytes + num_tokens * self.bytes_per_token


class StateLayerIndex(NamedTuple):
    """Index of a layer among the recurrent layers."""

    layer: int
