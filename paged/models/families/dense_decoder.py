"""Decoders of Llama's kind: what their config.json files and checkpoints have in common."""

from collections.abc import Sequence

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.ffns import FfnOfLayer
from pagedrun.paged.models.families.heads import Heads
from pagedrun.paged.models.linears.dense import Dense
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.embedding_spec import EmbeddingSpec
from pagedrun.paged.models.network.layer_spec import PreNormLayerSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.rope_config import RopeConfig
from pagedrun.paged.values.errors import ModelError

HEAD = "lm_head"
_OLD_BUFFERS = ("rotary_emb.inv_freq",)  # older exports carry them along


def dense_decoder(
    config: JsonObject,
    max_positions: int,
    heads: Heads,
    windows: Sequence[int | None],
    ffn: FfnOfLayer,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
) -> DecoderSpec[PreNormLayerSpec]:
    """Return a decoder with a layer for each of `windows`, under the names of Llama's tensors.

    `ffn` gives the feed-forward part of a layer by its index. The biases say which projections of
    attention have one, `qk_norm` whether each head's query and key pass an RMSNorm before rotation.
    Raises `ModelError` for what such a decoder does not have.
    """
    _refuse_unsupported(config)
    method = linear_method(config)
    hidden = config.integer("hidden_size", 1, 2**20)
    vocab_size = config.integer("vocab_size", 1, 2**24)
    eps = config.number("rms_norm_eps", 0.0, 1.0, 1e-6)
    rope = RopeConfig.from_json(config, max_positions)
    is_tied = config.boolean("tie_word_embeddings", False)
    head_dim = heads.head_dim
    num_query, num_key = heads.num_heads * head_dim, heads.num_kv_heads * head_dim

    def layer(index: int, window: int | None) -> PreNormLayerSpec:
        prefix = f"model.layers.{index}"

        def norm(name: str, size: int) -> NormSpec:
            return NormSpec(f"{prefix}.{name}", size, eps)

        def linear(parts: dict[str, int], in_features: int, has_bias: bool) -> LinearSpec:
            projections = (Projection(f"{prefix}.{name}", out) for name, out in parts.items())
            return LinearSpec(tuple(projections), in_features, has_bias, method)

        qkv = {"self_attn.q_proj": num_query, "self_attn.k_proj": num_key}
        qkv["self_attn.v_proj"] = num_key
        attention = AttentionSpec(
            heads.num_heads,
            heads.num_kv_heads,
            head_dim,
            scale=head_dim**-0.5,
            window=window,
            rope=rope,
            qkv=linear(qkv, hidden, qkv_bias),
            out=linear({"self_attn.o_proj": hidden}, num_query, out_bias),
            q_norm=norm("self_attn.q_norm", head_dim) if qk_norm else None,
            k_norm=norm("self_attn.k_norm", head_dim) if qk_norm else None,
        )
        return PreNormLayerSpec(
            norm("input_layernorm", hidden),
            attention,
            norm("post_attention_layernorm", hidden),
            ffn(index),
        )

    head = LinearSpec((Projection(HEAD, vocab_size),), hidden, has_bias=False, method=Dense())
    return DecoderSpec(
        embedding=EmbeddingSpec("model.embed_tokens", vocab_size, hidden),
        layers=tuple(layer(index, window) for index, window in enumerate(windows)),
        norm=NormSpec("model.norm", hidden, eps),
        head=None if is_tied else head,
        ignored=(*_OLD_BUFFERS, *([f"{HEAD}.weight"] if is_tied else [])),
        max_position_embeddings=max_positions,
    )


def _refuse_unsupported(config: JsonObject) -> None:
    """Refuse what would change the arithmetic if it were silently ignored."""
    if config.has("per_layer_config"):
        raise ModelError(
            f"{config.origin}: per_layer_config gives layers different shapes, which pagedrun "
            "cannot run; use a model whose layers are alike"
        )
    if not config.boolean("is_causal", True):
        raise config.error("is_causal", "true: pagedrun runs causal decoders only")
    activation = config.string("hidden_act")
    if activation not in (None, "silu", "swish"):  # two names of one function
        raise config.error("hidden_act", '"silu" for a model of this type')
