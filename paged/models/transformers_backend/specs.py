"""Descriptions of models that Transformers computes, without torch; both implement `Network`.

`TransformersSpec`: attention and experts run on pagedrun's kernels over paged KV memory.
`PlainSpec`: any other causal language model, computed sequence by sequence with the caches of
Transformers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVPlace, StateArray, StateSpec
from pagedrun.paged.models.checkpoint.tensors import NO_QUANTIZED, HeldCodes
from pagedrun.paged.models.network import AttentionHeads, KVGroup, bytes_read, kv_groups, kv_places
from pagedrun.paged.values.engine_config import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class TransformersAttention:
    """How the module of that `name` asks for attention: heads, and what it does with scores.

    See `AttentionSpec`.
    """

    name: str
    heads: AttentionHeads
    scale: float
    softcap: float | None


@dataclass(frozen=True, slots=True)
class TransformersSpec:
    """What a model of the library was seen to consist of; implements `Network`.

    `computed_by` is the library with its version, `fields` what it gets to see of config.json, as
    JSON. `layers` are in the order in which they attend. `width` is how many numbers a token takes
    at the widest point, residual stream left out.
    """

    computed_by: str
    fields: str
    layers: tuple[TransformersAttention, ...]
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_weights: int
    width: int

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's sliding window, in tokens; None for full attention."""
        return tuple(layer.heads.window for layer in self.layers)

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """The heads of each layer."""
        return tuple(layer.heads for layer in self.layers)

    @property
    def is_capturable(self) -> bool:
        """Never: the library's code may ask the device for numbers."""
        return False

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """The groups of layers with block tables of their own."""
        return kv_groups({index: layer.heads for index, layer in enumerate(self.layers)})

    @property
    def places(self) -> tuple[KVPlace, ...]:
        """Where each layer has its keys and values."""
        places = kv_places(self.kv_groups)
        return tuple(places[index] for index in range(len(self.layers)))

    def arithmetic(self) -> dict[str, str]:
        """Return what its last bits depend on besides pagedrun's kernels: the libraries."""
        return {"computed_by": f"{self.computed_by} with torch {version('torch')}"}

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights, in a model whose numbers have `dtype_bytes`."""
        return self.num_weights * dtype_bytes

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of all weights in memory: they are packed in place of the library's."""
        return self.num_bytes(dtype_bytes)

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point; see `Network`."""
        per_token = (self.width + 4 * self.hidden_size) * dtype_bytes
        return num_tokens * per_token + num_logits * self.vocab_size * dtype_bytes

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the groups of layers whose keys and values are stored in `dtype`, torch's name."""
        return tuple(group.spec(dtype) for group in self.kv_groups)

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return nothing: models with recurrent layers are refused."""
        return ()

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return for each window, or None, the bytes that all layers with it read of a token."""
        return bytes_read(self.places, specs)


@dataclass(frozen=True, slots=True)
class PlainSpec:
    """What a model of the library was seen to keep of a sequence; implements `Network`.

    `computed_by` is the library with its version, `fields` what it gets to see of config.json, as
    JSON. `why` says why its layers do not run over paged memory. The library's cache goes in and
    out by the name `cache_name`; it holds `num_state_numbers` whatever a sequence's length, and
    `num_token_numbers` more for each token. `width` is how many numbers a token takes at the widest
    point, residual stream left out; `num_heads` of attention keep scores of all pairs of tokens.
    """

    computed_by: str
    fields: str
    why: str
    cache_name: str
    num_layers: int
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_weights: int
    num_state_numbers: int
    num_token_numbers: int
    num_heads: int
    width: int

    @property
    def windows(self) -> tuple[int | None, ...]:
        """None for each layer: what they see is the library's business."""
        return (None,) * self.num_layers

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """None that pagedrun's kernels compute."""
        return ()

    @property
    def is_capturable(self) -> bool:
        """Never: the library's code may ask the device for numbers."""
        return False

    def arithmetic(self) -> dict[str, str]:
        """Return what its last bits depend on besides pagedrun's kernels: the libraries."""
        return {"computed_by": f"{self.computed_by}, plain, with torch {version('torch')}"}

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights, in a model whose numbers have `dtype_bytes`."""
        return self.num_weights * dtype_bytes

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of all weights in memory: they stay as the library holds them."""
        return self.num_bytes(dtype_bytes)

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point; see `Network`.

        One sequence is computed after the other, of which the longest may be all of the step.
        """
        longest = min(num_tokens, self.max_position_embeddings)
        per_token = (self.width + 4 * self.hidden_size) * dtype_bytes + 8 * self.num_heads * longest
        return longest * per_token + num_logits * self.vocab_size * dtype_bytes

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return one group without layers: blocks that hold nothing, by which a run is planned."""
        return (KVCacheSpec(0, 1, 16, dtype),)

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return what the library's cache of a sequence takes at the most: of what does not grow it
        may keep any of it in float32."""
        fixed = StateArray("state", (self.num_state_numbers,), "float32")
        return (StateSpec((fixed,), self.num_token_numbers * DTYPE_BYTES[dtype], is_opaque=True),)

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return nothing: no layer reads from blocks."""
        return Counter()
