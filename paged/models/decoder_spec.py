"""Decoders: description, and its reading from config.json.

A family calls `decoder` (norms, tied head, scales of embedding and
logits), a form of its attention or recurrent layers, and its feed-forward layers; `llama_decoder`
is the form of Llama and its many relatives. The `DecoderSpec` has everything that planning and
loading ask for: parameters, bytes, KV groups, states, and the widest point of a forward pass.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVPlace, StatePlace, StateSpec
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensor_names import HEAD, PLAIN_TENSORS, NamedTensors
from pagedrun.paged.models.checkpoint.tensors import (
    NO_QUANTIZED,
    NO_TENSORS,
    HeldCodes,
    Parameter,
    Part,
    StoredTensors,
)
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads, QkNormForm, attention
from pagedrun.paged.models.modules.embedding import EmbeddingSpec, InputGateSpec, LayerInputsSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import FfnOfLayer, FfnSpec, check_activation
from pagedrun.paged.models.modules.moe import ParallelMoeSpec
from pagedrun.paged.models.modules.norm import NormForm, NormSpec
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.network import AttentionHeads, KVGroup, bytes_read, kv_groups, kv_places
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.errors import ModelError


class RecurrentSpec(Protocol):
    """What the rest of the program asks of it, whatever it computes.

    It passes the tokens of a sequence one by one, in their order, each with what the one before
    left behind: no cut between two tokens changes a bit.
    """

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        ...

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point."""
        ...

    def state_spec(self, dtype: str) -> StateSpec:
        """Return the state of a sequence, in a model of `dtype`, a name of torch."""
        ...


class LayerSpec(Protocol):
    """What the rest of the program asks of a layer, whatever it computes."""

    @property
    def attention(self) -> AttentionSpec | None:
        """What it keeps of each token, and how it reads it; None for a recurrent layer."""
        ...

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """What it keeps of each sequence; None for a layer that attends."""
        ...

    @property
    def intermediate_size(self) -> int:
        """Inner width of its feed-forward part."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        ...

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point, residual stream left out."""
        ...

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return the layer in the layout of a checkpoint that has the tensors `stored`."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Embedding, layers, a norm, and the head that gives logits.

    `head` None: tied, the embedding's table is the head's matrix. `ignored`: tensors that a
    checkpoint may hold without their being read, by name or its end. `max_position_embeddings` is
    the longest context, in tokens. Logits are divided by `logits_divisor`, then bent into
    -logits_cap .. logits_cap. `tensors` is how checkpoints name what the parameters name.
    `layer_inputs` is what each layer is given besides what the layer before it gives, if anything.
    """

    embedding: EmbeddingSpec
    layers: tuple[LayerSpec, ...]
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

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
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

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of all weights where a backend `packs` them in a layout of its own.

        A tied head is held twice there: packed, and as the table; so it is wherever the table stays
        in few bits, as `codes` says.
        """
        held = sum(part.held_bytes(dtype_bytes, codes) for part in self._parts())
        if self.head is None and (packs or self.embedding.holds_codes(codes)):
            held += self.embedding.packed_bytes(dtype_bytes, codes)
        return held

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


@dataclass(frozen=True, slots=True)
class DecoderLayerSpec:
    """Attention or a recurrence, then feed-forward, each between two norms that may be missing.

    The first normalises what it reads of the residual stream, the second what it gives. That is
    multiplied by `residual_multiplier` and added to the residual stream.

    Some layers have a mixture beside the feed-forward part, some add an input of their own behind
    it, and some multiply the whole residual stream by `scale` in the end.
    """

    attention_norm: NormSpec | None
    mixer: AttentionSpec | RecurrentSpec
    ffn_norm: NormSpec | None
    ffn: FfnSpec
    attention_out_norm: NormSpec | None = None
    ffn_out_norm: NormSpec | None = None
    residual_multiplier: float = 1.0
    parallel_moe: ParallelMoeSpec | None = None
    input_gate: InputGateSpec | None = None
    scale: Parameter | None = None

    @property
    def attention(self) -> AttentionSpec | None:
        """The mixer, if it is attention."""
        return self.mixer if isinstance(self.mixer, AttentionSpec) else None

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """The mixer, if it is a recurrence."""
        return None if isinstance(self.mixer, AttentionSpec) else self.mixer

    @property
    def intermediate_size(self) -> int:
        """Inner width of the feed-forward part."""
        beside = 0 if self.parallel_moe is None else self.parallel_moe.moe.intermediate_size
        return self.ffn.intermediate_size + beside

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        parts = (
            *(self.attention_norm, *self.mixer.parts, self.attention_out_norm),
            *(self.ffn_norm, *self.ffn.parts, self.ffn_out_norm),
            *(() if self.parallel_moe is None else self.parallel_moe.parts),
            *(() if self.input_gate is None else self.input_gate.parts),
            self.scale,
        )
        return tuple(part for part in parts if part is not None)

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point, residual stream left out."""
        beside = 0 if self.parallel_moe is None else self.parallel_moe.width
        return max(self.mixer.width, self.ffn.width + beside)

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return it as a checkpoint holds it, whose tensors are those `stored`."""
        parallel_moe = self.parallel_moe and self.parallel_moe.stored_as(stored)
        return replace(self, ffn=self.ffn.stored_as(stored), parallel_moe=parallel_moe)


# Older exports carry the first along, quantised ones the scales of a cache in 8 bits.
_BUFFERS = ("rotary_emb.inv_freq", "self_attn.k_scale", "self_attn.v_scale")


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The names of a layer's norms, None where there is none.

    Attention and feed-forward each have one of what they read, and one of what they give.
    """

    attention: str | None = "input_layernorm"
    attention_out: str | None = None
    ffn: str | None = "post_attention_layernorm"
    ffn_out: str | None = None


MixerOfLayer = Callable[[int], AttentionSpec | RecurrentSpec]


def decoder(
    config: JsonObject,
    max_positions: int,
    norm: NormForm,
    mixer: MixerOfLayer,
    ffn: FfnOfLayer,
    *,
    norms: LayerNorms = LayerNorms(),
    is_tied: bool = False,
    residual_multiplier: float = 1.0,
    embedding_scale: float = 1.0,
    logits_divisor: float = 1.0,
    logits_cap: float | None = None,
    last_norm: str = "model.norm",
    tensors: NamedTensors = PLAIN_TENSORS,
    finish: Callable[[int, DecoderLayerSpec], DecoderLayerSpec] | None = None,
) -> DecoderSpec:
    """Return a decoder under the tensor names of Llama, whose defaults it has.

    `mixer` and `ffn` give the attention or recurrence and the feed-forward part of a layer by its
    index, `finish` adds the remaining parts to it. `is_tied` is the default of
    `tie_word_embeddings`. Raises `ModelError` for fields that would change the arithmetic if they
    were ignored.
    """
    _refuse_unsupported(config)
    hidden = config.integer("hidden_size", 1, 2**20)
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    vocab_size = config.integer("vocab_size", 1, 2**24)
    ties_head = config.boolean("tie_word_embeddings", is_tied)

    def layer(index: int) -> DecoderLayerSpec:
        prefix = f"model.layers.{index}"
        attention_norm, ffn_norm, attention_out_norm, ffn_out_norm = (
            None if name is None else norm.named(f"{prefix}.{name}", hidden)
            for name in (norms.attention, norms.ffn, norms.attention_out, norms.ffn_out)
        )
        spec = DecoderLayerSpec(
            attention_norm=attention_norm,
            mixer=mixer(index),
            ffn_norm=ffn_norm,
            ffn=ffn(index),
            attention_out_norm=attention_out_norm,
            ffn_out_norm=ffn_out_norm,
            residual_multiplier=residual_multiplier,
        )
        return spec if finish is None else finish(index, spec)

    method = linear_method(config)
    head = LinearSpec((Projection(HEAD, vocab_size),), hidden, has_bias=False, method=method)
    return DecoderSpec(
        EmbeddingSpec("model.embed_tokens", vocab_size, hidden, embedding_scale),
        layers=tuple(layer(index) for index in range(num_layers)),
        norm=norm.named(last_norm, hidden),
        head=None if ties_head else head,
        ignored=(*_BUFFERS, *([f"{HEAD}.weight"] if ties_head else [])),
        max_position_embeddings=max_positions,
        logits_divisor=logits_divisor,
        logits_cap=logits_cap,
        tensors=tensors,
    )


def _refuse_unsupported(config: JsonObject) -> None:
    if config.has("per_layer_config"):
        raise ModelError(
            f"{config.origin}: per_layer_config gives layers different shapes, which "
            "pagedrun does not support; use a model with uniform layers"
        )
    if not config.boolean("is_causal", True):
        raise config.error("is_causal", "true: pagedrun supports causal decoders only")
    if config.boolean("use_bidirectional_attention", False):
        raise config.error(
            "use_bidirectional_attention", "false: pagedrun supports causal decoders only"
        )


def llama_decoder(
    config: JsonObject,
    max_positions: int,
    heads: Heads,
    windows: Sequence[int | None],
    ffn: FfnOfLayer,
    *,
    bias: bool = False,
    out_bias: bool | None = None,
    qk_norm: bool = False,
) -> DecoderSpec:
    """Return a decoder with a layer for each of `windows`, under the names of Llama's tensors.

    `ffn` gives the feed-forward part of a layer by its index. The biases say which projections of
    attention have one, `qk_norm` whether each head's query and key pass an RMSNorm before rotation.
    Raises `ModelError` for what such a decoder does not have.
    """
    check_activation(config, "silu")
    rope = RopeConfig.from_json(config, max_positions)
    norm, each_norm = NormForm.from_json(config), QkNormForm() if qk_norm else None

    def mixer(layer: int) -> AttentionSpec:
        return attention(
            config,
            layer,
            heads,
            norm,
            rope,
            windows[layer],
            bias=bias,
            out_bias=out_bias,
            qk_norm=each_norm,
        )

    return decoder(config, max_positions, norm, mixer, ffn)
