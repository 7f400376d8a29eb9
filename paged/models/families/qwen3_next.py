"""Qwen3-Next: Qwen3.5 with MoE layers; some may be dense; inputs of DeltaNets in groups."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads
from pagedrun.paged.models.modules.moe import qwen_moe
from pagedrun.paged.models.modules.recurrence import delta_net_decoder, grouped_projections


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = config.with_defaults({"norm_topk_prob": True, "intermediate_size": 5632})
    heads = Heads.from_json(config, num_kv_heads=2, head_dim=256)
    shared_inner = config.integer("shared_expert_intermediate_size", 1, 2**22, 512)
    ffns = qwen_moe(config, num_experts=512, num_chosen=10, inner=512, shared_inner=shared_inner)
    return delta_net_decoder(config, max_positions, heads, ffns, grouped_projections)


QWEN3_NEXT = Family(_describe, 32_768)
