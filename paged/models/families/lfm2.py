"""LFM2: short convolutions, and attention in some layers; norms of heads; its own tensor names."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, LayerNorms, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads, QkNormForm, attention
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import gated_mlp
from pagedrun.paged.models.modules.moe import FfnOfLayer
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.recurrence import ConvSpec, ShortConvSpec, attention_flags
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.quant.registry import linear_method

LFM2_NAMES = ("w1", "w3", "w2")
_NORMS = LayerNorms(attention="operator_norm", ffn="ffn_norm")
# Fields of the first checkpoints, which have precedence over the current ones.
_OLD_NAMES = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}


def with_new_names(config: JsonObject) -> JsonObject:
    """Return config.json with current names for the fields of the first checkpoints."""
    old = {new: config.fields[name] for name, new in _OLD_NAMES.items() if config.has(name)}
    return JsonObject(config.origin, {**config.fields, **old})


def lfm2_decoder(config: JsonObject, max_positions: int, ffn: FfnOfLayer) -> DecoderSpec:
    """Return a decoder; `ffn` gives the feed-forward part of a layer by its index."""
    attends = attention_flags(config, "conv", _layer_types(config))
    rope = RopeConfig.from_json(config, max_positions, theta=1_000_000.0)
    heads = Heads.from_json(config, num_kv_heads=8)
    norm = NormForm(config.number("norm_eps", 0.0, 1.0, 1e-5))
    qk_norm = QkNormForm("q_layernorm", "k_layernorm")

    def mixer(layer: int) -> AttentionSpec | ShortConvSpec:
        if not attends[layer]:
            return _short_conv(config, layer)
        return attention(
            config, heads, norm, rope, None, layer, qk_norm=qk_norm, out_name="out_proj"
        )

    return decoder(
        config,
        max_positions,
        norm,
        mixer,
        ffn,
        norms=_NORMS,
        is_tied=True,
        last_norm="model.embedding_norm",
    )


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = with_new_names(config)
    return lfm2_decoder(config, max_positions, _ffns(config))


def _layer_types(config: JsonObject) -> list[str]:
    """Return the kinds of layers by `full_attn_idxs`, a field of the first checkpoints."""
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    given = config.get("full_attn_idxs")
    if given is None:
        return ["full_attention"] * num_layers
    if not isinstance(given, list):
        raise config.error("full_attn_idxs", "a list of layer indices")
    return ["full_attention" if layer in given else "conv" for layer in range(num_layers)]


def _short_conv(config: JsonObject, layer: int) -> ShortConvSpec:
    method, prefix = linear_method(config), f"model.layers.{layer}.conv"
    hidden = config.integer("hidden_size", 1, 2**20)
    size, bias = config.integer("conv_L_cache", 2, 64, 3), config.boolean("conv_bias", False)
    return ShortConvSpec(
        LinearSpec((Projection(f"{prefix}.in_proj", 3 * hidden),), hidden, bias, method),
        ConvSpec(f"{prefix}.conv", hidden, size, bias),
        LinearSpec((Projection(f"{prefix}.out_proj", hidden),), hidden, bias, method),
    )


def _ffns(config: JsonObject) -> FfnOfLayer:
    inner = config.integer("intermediate_size", 1, 2**22)
    if config.boolean("block_auto_adjust_ff_dim", True):
        multiple = config.integer("block_multiple_of", 1, 2**20, 256)
        inner = int(2 * inner / 3)
        inner = int(config.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * inner)
        inner = -(-inner // multiple) * multiple
    return lambda layer: gated_mlp(
        config, f"model.layers.{layer}.feed_forward", inner, names=LFM2_NAMES
    )


LFM2 = Family(_describe, 128_000, bos_token_id=1, eos_token_id=2)
