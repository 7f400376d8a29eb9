"""dots.llm1: Qwen3's attention, with windows in upper layers, and sigmoid MoE layers."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, layer_windows, sliding_window
from pagedrun.paged.models.modules.moe import sigmoid_moe
from pagedrun.paged.values.json_value import JSONValue

_MOE_DEFAULTS: dict[str, JSONValue] = {
    "intermediate_size": 10_944,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    bias = config.boolean("attention_bias", False)
    first_layer = config.integer("max_window_layers", 0, 2**20, 62)
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config, num_kv_heads=32),
        layer_windows(config, sliding_window(config), first_layer),
        sigmoid_moe(config, _MOE_DEFAULTS),
        bias=bias,
        qk_norm=True,
    )


DOTS1 = Family(_describe, 2048)
