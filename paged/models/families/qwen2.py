"""Qwen2: biases of queries, keys and values; a sliding window in the upper layers, if any."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, upper_windows
from pagedrun.paged.models.modules.mlp import gated_mlps


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads = Heads.from_json(config, num_kv_heads=32)
    windows = upper_windows(config)
    return llama_decoder(
        config, max_positions, heads, windows, gated_mlps(config), bias=True, out_bias=False
    )


QWEN2 = Family(_describe, 32_768)
