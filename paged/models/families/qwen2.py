"""Qwen2: biases of queries, keys and values; a sliding window in the upper layers, if any."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.load_decoder import load_decoder
from pagedrun.paged.models.forms.ffns import gated_mlps
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.forms.llama_decoder import llama_decoder
from pagedrun.paged.models.forms.windows import upper_layer_windows
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec[DecoderLayerSpec]:
    heads = Heads.from_json(config, num_kv_heads=32)
    windows = upper_layer_windows(config)
    return llama_decoder(config, max_positions, heads, windows, gated_mlps(config), qkv_bias=True)


QWEN2 = Family(_describe, load_decoder, 32_768)
