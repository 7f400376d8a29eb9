"""Gemma 3: norms as in Gemma 2 and of each head; a window in five of six layers."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.gemma2 import gemma_decoder
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
    periodic_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import ropes_by_kind
from pagedrun.paged.values.json_value import JSONValue

# Defaults of transformers, which files on the hub leave out.
_DEFAULTS: dict[str, JSONValue] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = config.with_defaults(_DEFAULTS)
    bias = config.boolean("attention_bias", False)
    period = config.integer("sliding_window_pattern", 1, 4096, 6)
    windows = periodic_windows(config, sliding_window(config), period)
    heads, norm = Heads.from_json(config), NormForm.from_json(config, offset=1.0)
    theta = config.number("rope_local_base_freq", 1.001, 1e15, 10_000.0)
    ropes = ropes_by_kind(
        config, windows, max_positions, full_theta=1_000_000.0, sliding_theta=theta
    )
    # transformers reads attn_logit_softcapping too, and applies none.
    scale = config.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5
    qk_norm = QkNormForm()
    mixer = partial(
        attention, config, heads, norm, ropes, windows, bias=bias, qk_norm=qk_norm, scale=scale
    )
    return gemma_decoder(config, max_positions, norm, mixer)


GEMMA3 = Family(_describe, 131_072, bos_token_id=2, eos_token_id=1)
