"""Granite: Llama with a factor for embeddings, scores, residual additions and logits."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, attention, layer_windows
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.moe import FfnOfLayer
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def granite_decoder(
    config: JsonObject, max_positions: int, ffn: FfnOfLayer, *, has_rope: bool = True
) -> DecoderSpec:
    """Return a decoder; `ffn` gives the feed-forward part of a layer by its index.

    `has_rope`: queries and keys are rotated.
    """
    rope = RopeConfig.from_json(config, max_positions) if has_rope else None
    bias = config.boolean("attention_bias", False)
    windows = layer_windows(config, None)
    heads = Heads.from_json(config)
    norm = NormForm.from_json(config)
    scale = _factor(config, "attention_multiplier")
    mixer = partial(attention, config, heads, norm, rope, windows, bias=bias, scale=scale)
    return decoder(
        config,
        max_positions,
        norm,
        mixer,
        ffn,
        residual_multiplier=_factor(config, "residual_multiplier"),
        embedding_scale=_factor(config, "embedding_multiplier"),
        logits_divisor=_factor(config, "logits_scaling"),
    )


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    ffn = gated_mlps(config, has_bias=config.boolean("mlp_bias", False))
    return granite_decoder(config, max_positions, ffn)


def _factor(config: JsonObject, name: str) -> float:
    return config.number(name, 1e-6, 1e6, 1.0)


GRANITE = Family(_describe, 2048, bos_token_id=1, eos_token_id=2)
