"""Gemma 2: norms before and behind, capped scores, a window in every other layer."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, LayerNorms, MixerOfLayer, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    Heads,
    attention,
    periodic_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.values.json_value import JSONValue

GEMMA_NORMS = LayerNorms(
    attention="input_layernorm",
    attention_out="post_attention_layernorm",
    ffn="pre_feedforward_layernorm",
    ffn_out="post_feedforward_layernorm",
)
# Defaults of transformers.
_DEFAULTS: dict[str, JSONValue] = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = config.with_defaults(_DEFAULTS)
    bias = config.boolean("attention_bias", False)
    windows = periodic_windows(config, sliding_window(config), 2)
    heads, norm = Heads.from_json(config), NormForm.from_json(config, offset=1.0)
    rope = RopeConfig.from_json(config, max_positions)
    scale = config.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5
    softcap = optional_cap(config, "attn_logit_softcapping")
    mixer = partial(
        attention, config, heads, norm, rope, windows, bias=bias, scale=scale, softcap=softcap
    )
    return gemma_decoder(config, max_positions, norm, mixer)


def gemma_decoder(
    config: JsonObject, max_positions: int, norm: NormForm, mixer: MixerOfLayer
) -> DecoderSpec:
    """Return the decoder of a Gemma 2 or 3 with a mixer of each layer."""
    return decoder(
        config,
        max_positions,
        norm,
        mixer,
        gated_mlps(config, activation="gelu_tanh"),
        norms=GEMMA_NORMS,
        is_tied=True,
        embedding_scale=config.integer("hidden_size", 1, 2**20) ** 0.5,
        logits_cap=optional_cap(config, "final_logit_softcapping"),
    )


def optional_cap(config: JsonObject, name: str) -> float | None:
    """Return a cap of scores or logits, None if null."""
    return config.number(name, 1e-3, 1e6) if config.has(name) else None


GEMMA2 = Family(_describe, 8192, bos_token_id=2, eos_token_id=1)
