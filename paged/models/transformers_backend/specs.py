"""Descriptions of models that Transformers computes; without torch.

`TransformersSpec`: attention and experts run on pagedrun's kernels over paged KV memory.
`PlainSpec`: any other causal language model, computed sequence by sequence with the caches of
Transformers. Both implement `Network`.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVLayerIndex, StateArray, StateSpec
from pagedrun.paged.models.checkpoint.tensors import (
    NO_QUANTIZED,
    HeldCodes,
    StoredLinear,
    StoredTensors,
)
from pagedrun.paged.models.network import (
    AttentionHeads,
    KVLayers,
    bytes_read,
    kv_groups,
    kv_indices,
)
from pagedrun.paged.values.engine_config import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class TransformersAttention:
    """Attention of the module `name`: heads, scale and softcap; see `AttentionSpec`."""

    name: str
    heads: AttentionHeads
    scale: float
    softcap: float | None


@dataclass(frozen=True, slots=True)
class TransformersNetwork(ABC):
    """Fields and sizes that both descriptions share.

    `computed_by` is Transformers with its version, `fields` the visible part of config.json as
    JSON. `width` is the number of elements of a token at the widest point, without the residual
    stream.
    """

    computed_by: str
    fields: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_weights: int
    width: int

    @property
    @abstractmethod
    def kv_groups(self) -> tuple[KVLayers, ...]:
        """Groups of layers with block tables of their own."""

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the cache layout of each KV group in `dtype`, a name of torch."""
        return tuple(group.spec(dtype) for group in self.kv_groups)

    @property
    def is_capturable(self) -> bool:
        """Always false: code of Transformers may read values of device tensors."""
        return False

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights with elements of `dtype_bytes`."""
        return self.num_weights * dtype_bytes

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of all weights in memory; packed ones replace those of Transformers."""
        return self.num_bytes(dtype_bytes)

    def linears(self, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return nothing: linear layers are those of Transformers, and never quantized."""
        return ()


@dataclass(frozen=True, slots=True)
class TransformersSpec(TransformersNetwork):
    """Traced attention layers of a model over paged KV memory; implements `Network`.

    `layers` are in the order of execution.
    """

    layers: tuple[TransformersAttention, ...]

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's sliding window, in tokens; None for full attention."""
        return tuple(layer.heads.window for layer in self.layers)

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """Heads of each layer."""
        return tuple(layer.heads for layer in self.layers)

    @property
    def kv_groups(self) -> tuple[KVLayers, ...]:
        """Groups of layers with block tables of their own."""
        return kv_groups({index: layer.heads for index, layer in enumerate(self.layers)})

    @property
    def cache_indices(self) -> tuple[KVLayerIndex, ...]:
        """Index of the keys and values of each layer in the cache."""
        indices = kv_indices(self.kv_groups)
        return tuple(indices[layer] for layer in range(len(self.layers)))

    def arithmetic(self) -> dict[str, str]:
        """Return the versions of the libraries, which decide the last bits of results."""
        return {"computed_by": f"{self.computed_by} with torch {version('torch')}"}

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes of a step's tensors at the widest point; see `Network`."""
        per_token = (self.width + 4 * self.hidden_size) * dtype_bytes
        return num_tokens * per_token + num_logits * self.vocab_size * dtype_bytes

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return nothing: models with recurrent layers are refused."""
        return ()

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return the bytes of a token that layers read, by their window."""
        return bytes_read(self.cache_indices, specs)


@dataclass(frozen=True, slots=True)
class PlainSpec(TransformersNetwork):
    """Traced cache of a model that runs sequence by sequence; implements `Network`.

    `why` is the reason that its layers do not run over paged memory. The cache of Transformers is
    passed and returned under the name `cache_name`; it holds `num_state_numbers` elements at any
    length of a sequence, and `num_token_numbers` more for each token. `num_heads` of attention
    keep scores of all pairs of tokens.
    """

    why: str
    cache_name: str
    num_layers: int
    num_state_numbers: int
    num_token_numbers: int
    num_heads: int

    @property
    def windows(self) -> tuple[int | None, ...]:
        """None for each layer: Transformers applies windows itself."""
        return (None,) * self.num_layers

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """Always empty: pagedrun's kernels compute no attention."""
        return ()

    @property
    def kv_groups(self) -> tuple[KVLayers, ...]:
        """One group without layers: a run is planned by its empty blocks."""
        return (KVLayers(AttentionHeads(1, 1, 16, None), ()),)

    def arithmetic(self) -> dict[str, str]:
        """Return the versions of the libraries, which decide the last bits of results."""
        return {"computed_by": f"{self.computed_by}, plain, with torch {version('torch')}"}

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes of a step's tensors at the widest point; see `Network`.

        Sequences are computed one after another; the longest may be the whole step.
        """
        longest = min(num_tokens, self.max_position_embeddings)
        per_token = (self.width + 4 * self.hidden_size) * dtype_bytes + 8 * self.num_heads * longest
        return longest * per_token + num_logits * self.vocab_size * dtype_bytes

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return the maximum size of a sequence's cache; its fixed part may be in float32."""
        fixed = StateArray("state", (self.num_state_numbers,), "float32")
        return (StateSpec((fixed,), self.num_token_numbers * DTYPE_BYTES[dtype], is_opaque=True),)

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return nothing: no layer reads from blocks."""
        return Counter()
