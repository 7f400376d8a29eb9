"""Qwen3 with MoE layers; a window in every layer, or in none."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, sliding_window, uniform_windows
from pagedrun.paged.models.modules.moe import qwen_moe


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    attention_bias = config.boolean("attention_bias", False)
    window = sliding_window(config) if config.boolean("use_sliding_window", False) else None
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config, num_kv_heads=4),
        uniform_windows(config, window),
        qwen_moe(config, num_experts=128, num_chosen=8, inner=768),
        bias=attention_bias,
        qk_norm=True,
    )


QWEN3_MOE = Family(_describe, 32_768)
