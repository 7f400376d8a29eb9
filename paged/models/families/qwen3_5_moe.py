"""Qwen3.5 and Qwen3.6 with MoE layers and a shared expert."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads
from pagedrun.paged.models.modules.moe import MoeSpec, softmax_moe
from pagedrun.paged.models.modules.recurrence import delta_net_decoder, split_projections


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads = Heads.from_json(config, num_kv_heads=2, head_dim=256)
    shared_inner = config.integer("shared_expert_intermediate_size", 1, 2**22, 512)

    def ffn(layer: int) -> MoeSpec:
        return softmax_moe(
            config,
            f"model.layers.{layer}.mlp",
            num_experts=256,
            num_chosen=8,
            inner=512,
            normalize=True,
            shared_inner=shared_inner,
        )

    return delta_net_decoder(config, max_positions, heads, ffn, split_projections)


QWEN3_5_MOE = Family(_describe, 32_768)
