"""DecoderForm: how a family's decoder differs from Llama's, outside attention and feed-forward."""

from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.ffns import FfnOfLayer
from pagedrun.paged.models.forms.mixer_form import MixerForm
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.checkpoint.tensor_names import HEAD, PLAIN_TENSORS, NamedTensors
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.embedding_spec import EmbeddingSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection
from pagedrun.paged.values.errors import ModelError

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


@dataclass(frozen=True, slots=True)
class DecoderForm:
    """What is not given is as in Llama; `is_tied` holds where config.json is silent."""

    norm: NormForm
    layer_norms: LayerNorms = LayerNorms()
    is_tied: bool = False
    residual_multiplier: float = 1.0
    embedding_scale: float = 1.0
    logits_divisor: float = 1.0
    logits_cap: float | None = None
    last_norm: str = "model.norm"
    tensors: NamedTensors = PLAIN_TENSORS

    def decoder(
        self,
        config: JsonObject,
        max_positions: int,
        mixers: MixerForm,
        ffn: FfnOfLayer,
    ) -> DecoderSpec[DecoderLayerSpec]:
        """Return a decoder with a layer for each of `mixers`.

        `ffn` gives the feed-forward part of a layer by its index. Raises `ModelError` for what
        would change the arithmetic if it were silently ignored.
        """
        _refuse_unsupported(config)
        hidden = config.integer("hidden_size", 1, 2**20)
        vocab_size = config.integer("vocab_size", 1, 2**24)
        is_tied = config.boolean("tie_word_embeddings", self.is_tied)

        def layer(index: int) -> DecoderLayerSpec:
            prefix, names = f"model.layers.{index}", self.layer_norms
            norms = [
                None if name is None else self.norm.named(f"{prefix}.{name}", hidden)
                for name in (names.attention, names.ffn, names.attention_out, names.ffn_out)
            ]
            return DecoderLayerSpec(
                attention_norm=norms[0],
                mixer=mixers.layer(index, config, self.norm),
                ffn_norm=norms[1],
                ffn=ffn(index),
                attention_out_norm=norms[2],
                ffn_out_norm=norms[3],
                residual_multiplier=self.residual_multiplier,
            )

        method = linear_method(config)
        head = LinearSpec((Projection(HEAD, vocab_size),), hidden, has_bias=False, method=method)
        return DecoderSpec(
            EmbeddingSpec("model.embed_tokens", vocab_size, hidden, self.embedding_scale),
            layers=tuple(layer(index) for index in range(mixers.num_layers)),
            norm=self.norm.named(self.last_norm, hidden),
            head=None if is_tied else head,
            ignored=(*_BUFFERS, *([f"{HEAD}.weight"] if is_tied else [])),
            max_position_embeddings=max_positions,
            logits_divisor=self.logits_divisor,
            logits_cap=self.logits_cap,
            tensors=self.tensors,
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
