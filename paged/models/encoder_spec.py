"""Encoders: descriptions of their layers, and their reading from config.json.

An encoder is a `DecoderSpec` whose tokens see each other in both directions, without a head. Layers
of BERT and its relatives add and normalize behind each part; those of ModernBERT are layers of a
decoder with layer norms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import (
    NamedTensors,
    Parameter,
    Part,
    Role,
    StoredTensors,
    TensorNames,
)
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads
from pagedrun.paged.models.modules.embedding import EncoderEmbeddingSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import MlpSpec, PlainMlpSpec, plain_activation
from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.models.modules.relative import RelativeSpec
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.quant.registry import linear_method


@dataclass(frozen=True, slots=True)
class PostNormLayerSpec:
    """Attention, then feed-forward, each added to its input before a norm."""

    mixer: AttentionSpec
    attention_norm: LayerNormSpec
    ffn: PlainMlpSpec | MlpSpec
    ffn_norm: LayerNormSpec

    @property
    def attention(self) -> AttentionSpec | None:
        """Its attention."""
        return self.mixer

    @property
    def recurrent(self) -> None:
        """None: it has attention."""
        return

    @property
    def intermediate_size(self) -> int:
        """Inner width of the feed-forward part."""
        return self.ffn.intermediate_size

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        return (*self.mixer.parts, self.attention_norm, *self.ffn.parts, self.ffn_norm)

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token, without the residual stream."""
        return max(self.mixer.width, self.ffn.width)

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return the layer itself, which has one layout."""
        return self


# Prefixes of tensors of other tasks, and of heads, which are read apart from the network.
HEADS = (
    *("cls.", "lm_head.", "classifier.", "pre_classifier.", "pooler.", "head.", "decoder."),
    *("qa_outputs.", "score.", "vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
    *("discriminator_predictions.", "generator_predictions.", "generator_lm_head."),
    *("predictions.", "sop_classifier.", "lm_predictions.", "mask_predictions."),
)
# Buffers of older exports.
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids", "rotary_emb.inv_freq")


def encoder_tensors(prefix: str) -> NamedTensors:
    """Return the names of an encoder's tensors, with a prefix in models of a task, bare alone."""
    dropped = (*HEADS, *(f"{prefix}{each}" for each in ("pooler.", "head.")))
    return NamedTensors((TensorNames(prefix), TensorNames("")), dropped)


def encoder(
    embedding: EncoderEmbeddingSpec,
    layers: tuple[object, ...],
    norm: LayerNormSpec | None,
    num_positions: int,
    prefix: str,
) -> DecoderSpec:
    """Return an encoder; `prefix` begins the names of its tensors in models of a task."""
    return DecoderSpec(
        embedding,
        layers=layers,  # type: ignore[arg-type]
        norm=norm,
        head=None,
        ignored=_BUFFERS,
        max_position_embeddings=num_positions,
        tensors=encoder_tensors(prefix),
        is_causal=False,
        has_head=False,
    )


@dataclass(frozen=True, slots=True)
class BertNames:
    """Tensor names of a layer, after its own; `layers` begins them, followed by its index."""

    layers: str = "model.encoder.layer"
    qkv: tuple[str, str, str] = (
        *("attention.self.query", "attention.self.key"),
        "attention.self.value",
    )
    attention_out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    ffn_norm: str = "output.LayerNorm"


@dataclass(frozen=True, slots=True)
class BertForm:
    """Variants of an encoder with the layers of BERT.

    first_position: the rows of the table of positions before it belong to no token. num_types:
    default of `type_vocab_size`. eps: default of `layer_norm_eps`. activation: default of
    `hidden_act`. has_positions: the embedding has a table of positions. score_terms: terms of q · k
    in a score, whose scale is (score_terms * head_dim)^-0.5. relative: terms of a layer by the
    prefix of its tensors. layer_names: prefix of each layer's tensors, equal ones for a layer that
    is used several times. projection: name of the projection of tables of `embedding_size`.
    """

    first_position: int = 0
    num_types: int = 2
    eps: float = 1e-12
    activation: str = "gelu"
    names: BertNames = BertNames()
    has_positions: bool = True
    score_terms: int = 1
    relative: Callable[[str], RelativeSpec | None] = lambda prefix: None
    layer_names: Sequence[str] | None = None
    projection: str | None = None


def bert(config: JsonObject, num_positions: int, prefix: str, form: BertForm) -> DecoderSpec:
    """Return an encoder with the layers of BERT.

    num_positions: of the table. prefix: see `encoder`. Raises `ModelError` for fields that would
    change the arithmetic if they were ignored.
    """
    heads, hidden = Heads.from_json(config), config.integer("hidden_size", 1, 2**20)
    inner = config.integer("intermediate_size", 1, 2**22)
    eps = config.number("layer_norm_eps", 0.0, 1.0, form.eps)
    method, function = linear_method(config), plain_activation(config, form.activation)
    refuse_other_encoders(config)
    names, width = form.names, heads.num_heads * heads.head_dim

    def linear(sizes: tuple[tuple[str, int], ...], in_features: int) -> LinearSpec:
        parts = tuple(Projection(name, size) for name, size in sizes)
        return LinearSpec(parts, in_features, has_bias=True, method=method)

    def layer(own: str) -> PostNormLayerSpec:
        mixer = AttentionSpec(
            *(heads.num_heads, heads.num_kv_heads, heads.head_dim),
            scale=(heads.head_dim * form.score_terms) ** -0.5,
            window=None,
            rope=None,
            qkv=linear(tuple((f"{own}.{name}", width) for name in names.qkv), hidden),
            out=linear(((f"{own}.{names.attention_out}", hidden),), width),
            relative=form.relative(own),
        )
        ffn = PlainMlpSpec(
            function,
            linear(((f"{own}.{names.up}", inner),), hidden),
            linear(((f"{own}.{names.down}", hidden),), inner),
        )
        return PostNormLayerSpec(
            mixer,
            LayerNormSpec(f"{own}.{names.attention_norm}", hidden, eps),
            ffn,
            LayerNormSpec(f"{own}.{names.ffn_norm}", hidden, eps),
        )

    tables, projection, size = "model.embeddings", None, hidden
    if form.projection is not None:
        size = config.integer("embedding_size", 1, 2**20, 128)
        projection = linear(((form.projection, hidden),), size)
        projection = replace(projection, keep_precision=True)
    num_types = config.integer("type_vocab_size", 0, 1024, form.num_types)
    positions = _table(f"{tables}.position_embeddings", num_positions, size)
    embedding = EncoderEmbeddingSpec(
        f"{tables}.word_embeddings",
        config.integer("vocab_size", 1, 2**24),
        hidden,
        norm=LayerNormSpec(f"{tables}.LayerNorm", size, eps),
        positions=positions if form.has_positions else None,
        types=_table(f"{tables}.token_type_embeddings", num_types, size) if num_types else None,
        first_position=form.first_position,
        projection=projection,
    )
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    own_names = form.layer_names or [f"{names.layers}.{index}" for index in range(num_layers)]
    layers = tuple(layer(own) for own in own_names)
    return encoder(embedding, layers, None, num_positions - form.first_position, prefix)


@dataclass(frozen=True, slots=True)
class RotaryForm:
    """Variants of an encoder with the layers of BERT and rotations in place of a position table.

    theta: default of the rotation's base. eps: default of `layer_norm_eps`. layers begins the names
    of a layer's tensors, the others follow its index. mlp: of a layer by the prefix of its tensors.
    has_bias: queries, keys, values and the output of attention have biases.
    """

    theta: float
    eps: float
    num_types: int
    layers: str
    qkv: str
    out: str
    attention_norm: str
    ffn_norm: str
    mlp: Callable[[str], PlainMlpSpec | MlpSpec]
    embedding_norm: str
    has_bias: bool = True


def rotary_bert(
    config: JsonObject, max_positions: int, prefix: str, form: RotaryForm
) -> DecoderSpec:
    """Return an encoder with the layers of BERT that rotates; arguments as of `bert`."""
    heads, hidden = Heads.from_json(config), config.integer("hidden_size", 1, 2**20)
    eps, method = config.number("layer_norm_eps", 0.0, 1.0, form.eps), linear_method(config)
    rope = RopeConfig.from_json(config, max_positions, theta=form.theta)
    width = heads.num_heads * heads.head_dim

    def linear(name: str, out_features: int, in_features: int) -> LinearSpec:
        return LinearSpec((Projection(name, out_features),), in_features, form.has_bias, method)

    def layer(own: str) -> PostNormLayerSpec:
        mixer = AttentionSpec(
            *(heads.num_heads, heads.num_heads, heads.head_dim, heads.head_dim**-0.5),
            window=None,
            rope=rope,
            qkv=linear(f"{own}.{form.qkv}", 3 * width, hidden),
            out=linear(f"{own}.{form.out}", hidden, width),
        )
        return PostNormLayerSpec(
            mixer,
            LayerNormSpec(f"{own}.{form.attention_norm}", hidden, eps),
            form.mlp(own),
            LayerNormSpec(f"{own}.{form.ffn_norm}", hidden, eps),
        )

    tables = "model.embeddings"
    num_types = config.integer("type_vocab_size", 0, 1024, form.num_types)
    embedding = EncoderEmbeddingSpec(
        f"{tables}.word_embeddings",
        config.integer("vocab_size", 1, 2**24),
        hidden,
        norm=LayerNormSpec(form.embedding_norm, hidden, eps),
        types=_table(f"{tables}.token_type_embeddings", num_types, hidden) if num_types else None,
    )
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    layers = tuple(layer(f"{form.layers}.{index}") for index in range(num_layers))
    return encoder(embedding, layers, None, max_positions, prefix)


def refuse_other_encoders(config: JsonObject) -> None:
    """Raise `ModelError` for fields of BERT and its relatives that make it another model."""
    if (config.string("position_embedding_type") or "absolute") != "absolute":
        raise config.error("position_embedding_type", '"absolute"')
    for name in ("is_decoder", "add_cross_attention"):
        if config.boolean(name, False):
            raise config.error(name, "false: it would be another model")


def _table(name: str, num_rows: int, size: int) -> Parameter:
    return Parameter(f"{name}.weight", (num_rows, size), Role.MATRIX)
