"""Decoders, and encoders of the same form: descriptions and their reading from config.json.

A family calls `decoder` with functions that give the attention or recurrence and the feed-forward
part of a layer; `llama_decoder` covers Llama and its relatives. A `DecoderSpec` gives parameters,
bytes, KV groups, states and peak activations to planning and loading.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVLayerIndex, StateLayerIndex, StateSpec
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import (
    HEAD,
    NO_QUANTIZED,
    NO_TENSORS,
    PLAIN_TENSORS,
    HeldCodes,
    NamedTensors,
    Parameter,
    Part,
    StoredLinear,
    StoredTensors,
)
from pagedrun.paged.models.layer_spec import LayerSpec, MtpForm, MtpSpec, RecurrentSpec
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads, QkNormForm, attention
from pagedrun.paged.models.modules.embedding import EmbeddingSpec, InputGateSpec, LayerInputsSpec
from pagedrun.paged.models.modules.linear import ExpertsSpec, LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import check_activation
from pagedrun.paged.models.modules.moe import FfnOfLayer, FfnSpec, ParallelMoeSpec
from pagedrun.paged.models.modules.norm import AnyNormSpec, NormForm
from pagedrun.paged.models.modules.relative import PositionProducts
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.network import (
    AttentionHeads,
    KVLayers,
    bytes_read,
    kv_groups,
    kv_indices,
)
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.errors import ModelError


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Description of a decoder: embedding, layers, final norm and head.

    `head` None: tied to the embedding. `ignored`: names, or their ends, of tensors that a
    checkpoint may hold and that are not read; that of a head only beside an equal table.
    `max_position_embeddings` is the longest context, in tokens. Logits are divided by
    `logits_divisor`, then soft-capped to -logits_cap .. logits_cap. `tensors` are the tensor names
    of checkpoints. `layer_inputs`: per-layer inputs of Gemma. `norm` None: the last layer ends with
    one. Without `is_causal` a token sees those behind it as well, as in an encoder. Without
    `has_head` there are no logits: the model gives hidden states. `mtp`: module that predicts the
    token after the next one, of which a part of the network only if it `has_mtp`. Layers that are
    equal, under the same tensor names, are one layer that is used several times.
    """

    embedding: EmbeddingSpec
    layers: tuple[LayerSpec, ...]
    norm: AnyNormSpec | None
    head: LinearSpec | None
    ignored: tuple[str, ...]
    max_position_embeddings: int
    logits_divisor: float = 1.0
    logits_cap: float | None = None
    tensors: NamedTensors = PLAIN_TENSORS
    layer_inputs: LayerInputsSpec | None = None
    is_causal: bool = True
    has_head: bool = True
    mtp: MtpSpec | None = None
    has_mtp: bool = False

    @property
    def attentions(self) -> dict[int, AttentionSpec]:
        """Attention of each layer that has one, by layer index."""
        layers = enumerate(self.layers)
        return {index: layer.attention for index, layer in layers if layer.attention is not None}

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the embedding and the logits."""
        return self.embedding.vocab_size

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def own_layers(self) -> tuple[LayerSpec, ...]:
        """Layers with weights of their own, in the order of their first use."""
        return tuple(dict.fromkeys(self.layers))

    def hidden_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of a token's hidden states between layers."""
        inputs = 0 if self.layer_inputs is None else self.layer_inputs.width
        return self.embedding.hidden_size * (4 + dtype_bytes) + inputs * dtype_bytes

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Sliding window of each layer with attention, in tokens."""
        return tuple(each.window for each in self.attentions.values())

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """Heads of each layer with attention."""
        return tuple(each.heads for each in self.attentions.values())

    @property
    def is_capturable(self) -> bool:
        """True if decode steps can be recorded; states of recurrent layers change their slots."""
        return len(self.attentions) == len(self.layers)

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return the network in the layout of a checkpoint that has the tensors `stored`.

        Checkpoints of one family may store the same matrices in different tensors; some have the
        table of a tied head under the name of the head alone.
        """
        mtp = None if self.mtp is None else self.mtp.stored_as(stored)
        layers = tuple(layer.stored_as(stored) for layer in self.layers)
        embedding = self.embedding
        if self.ties_head and stored.get(embedding.weight.name) is None:
            head = replace(embedding, name=HEAD)
            embedding = embedding if stored.get(head.weight.name) is None else head
        return replace(self, embedding=embedding, layers=layers, mtp=mtp)

    def with_mtp(self, stored: StoredTensors) -> Self:
        """Return the network with its MTP module, unchanged without one, and if the checkpoint with
        the tensors `stored` lacks some of it, or has it in another form."""
        if self.mtp is None or not self.has_head:
            return self
        parts = self.mtp.stored_as(stored).parts
        for each in (parameter for part in parts for parameter in part.parameters(stored)):
            found = stored.get(each.name)
            if found is None or found.shape != each.shape or found.dtype not in each.dtypes:
                return self
        return replace(self, has_mtp=True)

    def without_mtp(self) -> Self:
        """Return the network without its MTP module."""
        return replace(self, has_mtp=False)

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the tensors to read from a checkpoint that has the tensors `stored`."""
        return tuple(each for part in self._parts() for each in part.parameters(stored))

    def arithmetic(self) -> dict[str, str]:
        """Return nothing: the last bits depend on pagedrun's kernels alone."""
        return {}

    @property
    def num_weights(self) -> int:
        """Number of values of all weights, whatever their format; a tied head counts once."""
        return sum(part.num_weights for part in self._parts())

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights in a dtype of `dtype_bytes` a number."""
        return sum(part.num_bytes(dtype_bytes) for part in self._parts())

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of all weights in memory; `packs`: the backend has its own layout.

        `codes`: weights that stay quantized. A tied head is held besides the embedding if it is
        packed or quantized.
        """
        held = sum(part.held_bytes(dtype_bytes, codes) for part in self._parts())
        if self.ties_head and (packs or self.embedding.holds_codes(codes)):
            held += self.embedding.packed_bytes(dtype_bytes, codes)
        return held

    def packed_sizes(self, dtype_bytes: int, codes: HeldCodes = NO_QUANTIZED) -> tuple[int, ...]:
        """Return the bytes of the packed weights of each layer, and of the head if there is one, as
        `held_bytes`."""

        def packed(parts: Iterable[Part]) -> int:
            kinds = LinearSpec | ExpertsSpec | PositionProducts
            chosen = (each for each in parts if isinstance(each, kinds))
            return sum(each.held_bytes(dtype_bytes, codes) for each in chosen)

        layers = tuple(packed(layer.parts) for layer in self.own_layers)
        if not self.has_head:
            return layers
        if self.head is None:
            return *layers, self.embedding.packed_bytes(dtype_bytes, codes)
        return *layers, packed([self.head])

    def mapped_bytes(self, dtype_bytes: int, codes: HeldCodes = NO_QUANTIZED) -> int:
        """Return the bytes of plain experts, which a CPU reads in the mapped files of a 16-bit
        checkpoint as they are used."""
        experts = (each for layer in self.own_layers for each in layer.parts)
        sizes = (
            (each.held_bytes(dtype_bytes, codes), each.num_bytes(dtype_bytes))
            for each in experts
            if isinstance(each, ExpertsSpec)
        )
        return sum(held for held, plain in sizes if held == plain and dtype_bytes == 2)

    def linears(self, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the linear layers of a checkpoint that has the tensors `stored`; those of the MTP
        module decide no bytes of answers, and are left out."""
        tied = (self.embedding.tied_head(stored),) if self.ties_head else ()
        parts = self.without_mtp()._parts()
        return *(each for part in parts for each in part.linears(stored)), *tied

    @property
    def kv_groups(self) -> tuple[KVLayers, ...]:
        """KV groups: layers that share block tables.

        Layers that read the keys and values of other layers, and recurrent layers, are in no group.
        """
        own = ((layer, each) for layer, each in self._storing.items() if each.source is None)
        return kv_groups({layer: each.heads for layer, each in own})

    @property
    def cache_indices(self) -> tuple[KVLayerIndex | StateLayerIndex, ...]:
        """Index of the keys and values, or of the states, of each layer in the cache."""
        attending = self._attending
        recurrent = (layer for layer in range(len(self.layers)) if layer not in attending)
        states = {layer: StateLayerIndex(index) for index, layer in enumerate(recurrent)}
        return tuple(
            attending[layer] if layer in attending else states[layer]
            for layer in range(len(self.layers))
        )

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return the state of a sequence in each recurrent layer, in a model of `dtype`.

        `dtype` is a name of torch.
        """
        recurrent = (layer.recurrent for layer in self.layers)
        return tuple(each.state_spec(dtype) for each in recurrent if each is not None)

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the cache layout of each KV group in `dtype`, a name of torch."""
        return tuple(group.spec(dtype) for group in self.kv_groups)

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return the bytes of a token that layers read, by their window.

        specs: one of each KV group.
        """
        return bytes_read(self._attending.values(), specs)

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the peak bytes of the activations of a step.

        dtype_bytes: of a number in the model's dtype. num_logits: tokens with logits.
        """
        width = max(layer.width for layer in self.layers)
        hidden_size = self.embedding.hidden_size
        inputs = 0 if self.layer_inputs is None else self.layer_inputs.width
        # Hidden states for the MTP module, and its own before their projection.
        kept = 3 * hidden_size if self.has_mtp else 0
        per_token = (inputs + width + kept + 2 * hidden_size) * dtype_bytes + 4 * hidden_size
        return num_tokens * per_token + num_logits * self.embedding.vocab_size * dtype_bytes

    @property
    def _attending(self) -> dict[int, KVLayerIndex]:
        """Index of the keys and values that each layer with attention reads."""
        own = kv_indices(self.kv_groups)
        return {
            layer: own[layer if each.source is None else each.source]
            for layer, each in self._storing.items()
        }

    @property
    def _storing(self) -> dict[int, AttentionSpec]:
        """Attention of the layers and, behind them, of the MTP module if the network has it."""
        found = self.attentions
        if self.has_mtp and self.mtp is not None:
            assert self.mtp.layer.attention is not None, "an MTP module has attention"
            found[len(self.layers)] = self.mtp.layer.attention
        return found

    @property
    def mtp_index(self) -> KVLayerIndex:
        """Index of the keys and values of the MTP module."""
        return self._attending[len(self.layers)]

    @property
    def ties_head(self) -> bool:
        """True if the head is the embedding's table."""
        return self.has_head and self.head is None

    def _parts(self) -> list[Part]:
        layers = list(dict.fromkeys(part for layer in self.own_layers for part in layer.parts))
        head = [] if self.head is None else [self.head]
        inputs = [] if self.layer_inputs is None else self.layer_inputs.parts
        norm = [] if self.norm is None else [self.norm]
        mtp = self.mtp.parts if self.has_mtp and self.mtp is not None else ()
        return [self.embedding, *inputs, *layers, *norm, *head, *mtp]


@dataclass(frozen=True, slots=True)
class DecoderLayerSpec:
    """Attention or a recurrence, then feed-forward, each between two optional norms.

    The first norm is applied to the input of a part, the second to its output, which is multiplied
    by `residual_multiplier` and added to the residual stream. `parallel_moe` is computed beside
    the feed-forward part, `input_gate` behind it. `scale` multiplies the residual stream last.
    """

    attention_norm: AnyNormSpec | None
    mixer: AttentionSpec | RecurrentSpec
    ffn_norm: AnyNormSpec | None
    ffn: FfnSpec
    attention_out_norm: AnyNormSpec | None = None
    ffn_out_norm: AnyNormSpec | None = None
    residual_multiplier: float = 1.0
    parallel_moe: ParallelMoeSpec | None = None
    input_gate: InputGateSpec | None = None
    scale: Parameter | None = None

    @property
    def attention(self) -> AttentionSpec | None:
        """The mixer if it is attention."""
        return self.mixer if isinstance(self.mixer, AttentionSpec) else None

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """The mixer if it is a recurrence."""
        return None if isinstance(self.mixer, AttentionSpec) else self.mixer

    @property
    def intermediate_size(self) -> int:
        """Inner width of the feed-forward part."""
        beside = 0 if self.parallel_moe is None else self.parallel_moe.moe.intermediate_size
        return self.ffn.intermediate_size + beside

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
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
        """Peak numbers of activation of a token, without the residual stream."""
        beside = 0 if self.parallel_moe is None else self.parallel_moe.width
        return max(self.mixer.width, self.ffn.width + beside)

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return the layer in the layout of a checkpoint that has the tensors `stored`."""
        parallel_moe = self.parallel_moe and self.parallel_moe.stored_as(stored)
        return replace(self, ffn=self.ffn.stored_as(stored), parallel_moe=parallel_moe)


# Buffers of older exports, and scales of an 8-bit KV cache in quantized ones.
_BUFFERS = ("rotary_emb.inv_freq", "self_attn.k_scale", "self_attn.v_scale")


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Tensor names of the norms before and behind attention and feed-forward; None for no norm."""

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
    mtp: MtpForm | None = None,
) -> DecoderSpec:
    """Return a decoder under the tensor names of Llama, whose defaults it has.

    `mixer` and `ffn` give the attention or recurrence and the feed-forward part of a layer by its
    index, `finish` adds the remaining parts to it. The layer of an `mtp` module has the index
    behind the last. `is_tied` is the default of `tie_word_embeddings`. Raises `ModelError` for
    fields that would change the arithmetic if they were ignored.
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
        mtp=None
        if mtp is None
        else mtp.module(layer(num_layers), f"model.layers.{num_layers}", norm, hidden),
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
    tensors: NamedTensors = PLAIN_TENSORS,
    mtp: MtpForm | None = None,
) -> DecoderSpec:
    """Return a decoder with a layer for each of `windows`, under the tensor names of Llama.

    `ffn` gives the feed-forward part of a layer by its index. `bias` and `out_bias` are those of
    `attention`. `qk_norm`: queries and keys of each head pass an RMSNorm before rotation. An `mtp`
    module has the last of `windows`. Raises `ModelError` for fields that would change the
    arithmetic if they were ignored.
    """
    check_activation(config, "silu")
    rope = RopeConfig.from_json(config, max_positions)
    norm, each_norm = NormForm.from_json(config), QkNormForm() if qk_norm else None

    mixer = partial(
        attention,
        config,
        heads,
        norm,
        rope,
        windows,
        bias=bias,
        out_bias=out_bias,
        qk_norm=each_norm,
    )
    return decoder(config, max_positions, norm, mixer, ffn, tensors=tensors, mtp=mtp)
