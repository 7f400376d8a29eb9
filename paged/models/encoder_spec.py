"""Encoders: descriptions of their layers, and their reading from config.json.

An encoder is a `DecoderSpec` whose tokens see each other in both directions, without a head. Layers
of BERT and its relatives add and normalize behind each part; those of ModernBERT are layers of a
decoder with layer norms.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from pagedrun.paged.models.modules.mlp import PlainMlpSpec
from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.models.quant.registry import linear_method


@dataclass(frozen=True, slots=True)
class PostNormLayerSpec:
    """Attention, then feed-forward, each added to its input before a norm."""

    mixer: AttentionSpec
    attention_norm: LayerNormSpec
    ffn: PlainMlpSpec
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
    """Tensor names of a layer, after its own; `layers` begins them."""

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


def bert(
    config: JsonObject,
    num_positions: int,
    prefix: str,
    *,
    first_position: int = 0,
    num_types: int = 2,
    names: BertNames = BertNames(),
    activation: Callable[[JsonObject], str] = lambda config: config.string("hidden_act") or "gelu",
) -> DecoderSpec:
    """Return an encoder with the layers of BERT.

    num_positions: of the table, of which the first `first_position` belong to no token. num_types:
    default of `type_vocab_size`. Raises `ModelError` for fields that would change the arithmetic if
    they were ignored.
    """
    heads, hidden = Heads.from_json(config), config.integer("hidden_size", 1, 2**20)
    inner = config.integer("intermediate_size", 1, 2**22)
    eps = config.number("layer_norm_eps", 0.0, 1.0, 1e-12)
    method, function = linear_method(config), activation(config)
    if function not in ("gelu", "relu"):
        raise config.error("hidden_act", '"gelu" or "relu" for a model of this type')
    if (config.string("position_embedding_type") or "absolute") != "absolute":
        raise config.error("position_embedding_type", '"absolute"')
    for name in ("is_decoder", "add_cross_attention"):
        if config.boolean(name, False):
            raise config.error(name, "false: it would be another model")
    width = heads.num_heads * heads.head_dim

    def linear(sizes: tuple[tuple[str, int], ...], in_features: int) -> LinearSpec:
        parts = tuple(Projection(name, size) for name, size in sizes)
        return LinearSpec(parts, in_features, has_bias=True, method=method)

    def layer(index: int) -> PostNormLayerSpec:
        own = f"{names.layers}.{index}"
        mixer = AttentionSpec(
            *(heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.head_dim**-0.5),
            window=None,
            rope=None,
            qkv=linear(tuple((f"{own}.{name}", width) for name in names.qkv), hidden),
            out=linear(((f"{own}.{names.attention_out}", hidden),), width),
        )
        ffn = PlainMlpSpec(
            function,  # type: ignore[arg-type]
            linear(((f"{own}.{names.up}", inner),), hidden),
            linear(((f"{own}.{names.down}", hidden),), inner),
        )
        return PostNormLayerSpec(
            mixer,
            LayerNormSpec(f"{own}.{names.attention_norm}", hidden, eps),
            ffn,
            LayerNormSpec(f"{own}.{names.ffn_norm}", hidden, eps),
        )

    tables = "model.embeddings"
    num_types = config.integer("type_vocab_size", 0, 1024, num_types)
    embedding = EncoderEmbeddingSpec(
        f"{tables}.word_embeddings",
        config.integer("vocab_size", 1, 2**24),
        hidden,
        norm=LayerNormSpec(f"{tables}.LayerNorm", hidden, eps),
        positions=_table(f"{tables}.position_embeddings", num_positions, hidden),
        types=_table(f"{tables}.token_type_embeddings", num_types, hidden) if num_types else None,
        first_position=first_position,
    )
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    layers = tuple(layer(index) for index in range(num_layers))
    return encoder(embedding, layers, None, num_positions - first_position, prefix)


def _table(name: str, num_rows: int, hidden: int) -> Parameter:
    return Parameter(f"{name}.weight", (num_rows, hidden), Role.MATRIX)
