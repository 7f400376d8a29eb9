"""OLMo 2: norms behind attention and feed-forward, and of all queries and keys together."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, LayerNorms, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
    layer_windows,
)
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig

OLMO_NORMS = LayerNorms(
    attention=None,
    attention_out="post_attention_layernorm",
    ffn=None,
    ffn_out="post_feedforward_layernorm",
)


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    bias = config.boolean("attention_bias", False)
    windows = layer_windows(config, None)
    heads = Heads.from_json(config)
    rope = RopeConfig.from_json(config, max_positions)
    norm = NormForm.from_json(config, 1e-5)
    qk_norm = QkNormForm(across_heads=True)
    mixer = partial(attention, config, heads, norm, rope, windows, bias=bias, qk_norm=qk_norm)
    return decoder(config, max_positions, norm, mixer, gated_mlps(config), norms=OLMO_NORMS)


OLMO2 = Family(_describe, 2048, eos_token_id=50_279)
