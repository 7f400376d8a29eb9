"""Qwen2 with MoE layers and a shared expert; windows in every other layer."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, alternating_windows
from pagedrun.paged.models.modules.moe import qwen_moe


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    shared_inner = config.integer("shared_expert_intermediate_size", 1, 2**22, 5632)
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config, num_kv_heads=16),
        alternating_windows(config),
        qwen_moe(config, num_experts=60, num_chosen=4, inner=1408, shared_inner=shared_inner),
        bias=config.boolean("qkv_bias", True),
        out_bias=False,
    )


QWEN2_MOE = Family(_describe, 32_768)
