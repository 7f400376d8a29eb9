"""Ministral: Mistral with a sliding window in the layers that config.json says."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    AttentionSpec,
    Heads,
    attention,
    layer_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    windows = layer_windows(config, sliding_window(config))
    heads = Heads.from_json(config, num_kv_heads=8)
    rope = RopeConfig.from_json(config, max_positions)
    norm = NormForm.from_json(config)

    def mixer(layer: int) -> AttentionSpec:
        return attention(config, layer, heads, norm, rope, windows[layer])

    return decoder(config, max_positions, norm, mixer, gated_mlps(config))


MINISTRAL = Family(_describe, 131_072, bos_token_id=1, eos_token_id=2)
