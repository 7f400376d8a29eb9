"""Ministral: Mistral with a sliding window in the layers that config.json lists."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, layer_windows, sliding_window
from pagedrun.paged.models.modules.mlp import gated_mlps


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    windows = layer_windows(config, sliding_window(config))
    heads = Heads.from_json(config, num_kv_heads=8)
    return llama_decoder(config, max_positions, heads, windows, gated_mlps(config))


MINISTRAL = Family(_describe, 131_072, bos_token_id=1, eos_token_id=2)
