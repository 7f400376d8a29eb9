"""DecoderSpec: a whole decoder, as a value."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVPlace, StatePlace, StateSpec
from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.checkpoint.held_codes import NOTHING_HELD, HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.checkpoint.tensor_names import PLAIN_TENSORS, NamedTensors
from pagedrun.paged.models.network.embedding_spec import EmbeddingSpec
from pagedrun.paged.models.network.kv_groups import (
    AttentionHeads,
    KVGroup,
    bytes_read,
    kv_groups,
    kv_places,
)
from pagedrun.paged.models.network.layer_inputs_spec import LayerInputsSpec
from pagedrun.paged.models.network.layer_spec import LayerSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertsSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.network.part import Part

LayerT = TypeVar("LayerT", bound=LayerSpec, covariant=True)


@dataclass(frozen=True, slots=True)
class DecoderSpec(Generic[LayerT]):
    """Embedding, layers, a norm, and the head that gives logits.

    `head` None: tied, the embedding's table is the head's matrix. `ignored`: tensors that a
    checkpoint may hold without their being read, by name or its end. `max_position_embeddings` is
    the longest context, in tokens. Logits are divided by `logits_divisor`, then bent into
    -logits_cap .. logits_cap. `tensors` is how checkpoints name what the parameters name.
    `layer_inputs` is what each layer is given besides what the layer before it gives, if anything.
    """

    embedding: EmbeddingSpec
    layers: tuple[LayerT, ...]
    norm: NormSpec
    head: LinearSpec | None
    ignored: tuple[str, ...]
    max_position_embeddings: int
    logits_divisor: float = 1.0
    logits_cap: float | None = None
    tensors: NamedTensors = PLAIN_TENSORS
    layer_inputs: LayerInputsSpec | None = None

    @property
    def attentions(self) -> dict[int, AttentionSpec]:
        """The attention of each layer that has one, by the layer's index."""
        layers = enumerate(self.layers)
        return {index: layer.attention for index, layer in layers if layer.attention is not None}

    @property
    def vocab_size(self) -> int:
        """Tokens in the embedding, and in the logits."""
        return self.embedding.vocab_size

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer with attention, in tokens."""
        return tuple(each.window for each in self.attentions.values())

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """The heads of each layer with attention."""
        return tuple(each.heads for each in self.attentions.values())

    @property
    def is_capturable(self) -> bool:
        """Whether a step that only decodes can be recorded: states of recurrent layers move."""
        return len(self.attentions) == len(self.layers)

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return it as a checkpoint holds it, whose tensors are those `stored`.

        Checkpoints of one family may hold the same matrices in different tensors.
        """
        return replace(self, layers=tuple(layer.stored_as(stored) for layer in self.layers))

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return every tensor that the model reads of a checkpoint with the tensors `stored`."""
        return tuple(each for part in self._parts() for each in part.parameters(stored))

    def arithmetic(self) -> dict[str, str]:
        """Return what its last bits depend on besides pagedrun's kernels: nothing."""
        return {}

    @property
    def num_weights(self) -> int:
        """How many numbers all weights are, however they are held; a tied head's count once."""
        return sum(part.num_weights for part in self._parts())

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights, in a model whose numbers have `dtype_bytes`."""
        return sum(part.num_bytes(dtype_bytes) for part in self._parts())

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NOTHING_HELD) -> int:
        """Return the bytes of all weights where a backend `packs` them in a layout of its own.

        A tied head is held twice there: packed, and as the table; so it is wherever the table stays
        in few bits, as `codes` says.
        """
        others = self._parts()[1:]
        held = sum(
            part.held_bytes(dtype_bytes, codes)
            if isinstance(part, LinearSpec | ExpertsSpec)
            else part.num_bytes(dtype_bytes)
            for part in others
        )
        if self.head is None and (packs or self.embedding.holds_codes(codes)):
            held += self.embedding.packed_bytes(dtype_bytes, codes)
        return held + self.embedding.held_bytes(dtype_bytes, codes)

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """The groups of layers with block tables of their own.

        Layers that read the keys and values of others are in none, and recurrent layers neither.
        """
        own = ((layer, each) for layer, each in self.attentions.items() if each.source is None)
        return kv_groups({layer: each.heads for layer, each in own})

    @property
    def places(self) -> tuple[KVPlace | StatePlace, ...]:
        """Where each layer has its keys and values, or its states."""
        attending = self._attending
        recurrent = (layer for layer in range(len(self.layers)) if layer not in attending)
        states = {layer: StatePlace(place) for place, layer in enumerate(recurrent)}
        return tuple(
            attending[layer] if layer in attending else states[layer]
            for layer in range(len(self.layers))
        )

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return what each recurrent layer keeps of a sequence, in a model of `dtype`, torch's
        name; a slot has the bytes of all together. Empty for a model of attention alone."""
        recurrent = (layer.recurrent for layer in self.layers)
        return tuple(each.state_spec(dtype) for each in recurrent if each is not None)

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the groups of layers whose keys and values are stored in `dtype`, torch's name."""
        return tuple(group.spec(dtype) for group in self.kv_groups)

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return for each window, or None, the bytes that all layers with it read of a token.

        specs: of the groups of layers.
        """
        return bytes_read(self._attending.values(), specs)

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point of the network.

        dtype_bytes: of one number of the model's dtype. num_logits: tokens that logits are wanted
        of.
        """
        width = max(layer.width for layer in self.layers)
        hidden_size = self.embedding.hidden_size
        inputs = 0 if self.layer_inputs is None else self.layer_inputs.width
        per_token = (inputs + width + 2 * hidden_size) * dtype_bytes + 4 * hidden_size
        return num_tokens * per_token + num_logits * self.embedding.vocab_size * dtype_bytes

    @property
    def _attending(self) -> dict[int, KVPlace]:
        """Where each layer with attention reads keys and values."""
        own = kv_places(self.kv_groups)
        return {
            layer: own[layer if each.source is None else each.source]
            for layer, each in self.attentions.items()
        }

    def _parts(self) -> list[Part]:
        layers = [part for layer in self.layers for part in layer.parts]
        head = [] if self.head is None else [self.head]
        inputs = [] if self.layer_inputs is None else self.layer_inputs.parts
        return [self.embedding, *inputs, *layers, self.norm, *head]
