"""LFM2 with MoE layers behind the first ones: sigmoid scores with a correction."""

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.lfm2 import LFM2_NAMES, lfm2_decoder, with_new_names
from pagedrun.paged.models.modules.mlp import gated_mlp
from pagedrun.paged.models.modules.moe import FfnOfLayer, FfnSpec, moe, read_num_experts
from pagedrun.paged.models.quant.expert_layouts import PerExpert, Stacked


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = with_new_names(config)
    return lfm2_decoder(config, max_positions, _ffns(config))


def _ffns(config: JsonObject) -> FfnOfLayer:
    num_experts = read_num_experts(config, 32)
    choice = ExpertChoice(
        config.integer("num_experts_per_tok", 1, num_experts, 4),
        Score.SIGMOID,
        config.boolean("norm_topk_prob", True),
        sum_eps=1e-6,
        scaling=config.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
    )
    moe_inner = config.integer("moe_intermediate_size", 1, 2**22, 1792)
    correction = "expert_bias" if config.boolean("use_expert_bias", True) else None
    inner = config.integer("intermediate_size", 1, 2**22, 7168)
    num_dense = config.integer("num_dense_layers", 0, 4096, 2)

    def ffn(layer: int) -> FfnSpec:
        name = f"model.layers.{layer}.feed_forward"
        if layer < num_dense:
            return gated_mlp(config, name, inner, names=LFM2_NAMES)
        return moe(
            config,
            name,
            num_experts,
            moe_inner,
            choice,
            layouts=(PerExpert(*LFM2_NAMES), Stacked()),
            correction=correction,
        )

    return ffn


LFM2_MOE = Family(_describe, 128_000, bos_token_id=1, eos_token_id=2)
