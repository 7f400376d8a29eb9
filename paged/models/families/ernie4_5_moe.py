"""ERNIE 4.5 with MoE layers: softmax weights of experts chosen by corrected scores."""

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import NamedTensors
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.ernie4_5 import ernie_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads
from pagedrun.paged.models.modules.mlp import gated_mlp, gated_mlps
from pagedrun.paged.models.modules.moe import FfnOfLayer, FfnSpec, moe, read_num_experts

# Multi-token prediction layers.
_TENSORS = NamedTensors(dropped=("model.mtp_",))


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    if config.boolean("use_bias", False):
        raise config.error("use_bias", "false for a model of this type, whose head has no bias")
    config = config.with_defaults({"intermediate_size": 12_288})
    heads = Heads.from_json(config, num_kv_heads=4)
    return ernie_decoder(config, max_positions, heads, _ffns(config), _TENSORS)


def _ffns(config: JsonObject) -> FfnOfLayer:
    num_experts = read_num_experts(config, 64, "moe_num_experts")
    num_chosen = config.integer("moe_k", 1, num_experts, 6)
    inner = config.integer("moe_intermediate_size", 1, 2**22, 1536)
    # transformers divides by the sum or this minimum; as an addend it gives the same for sums that
    # are not as small.
    sum_eps = config.number("moe_norm_min", 0.0, 1e-6, 1e-12)
    choice = ExpertChoice(num_chosen, Score.SOFTMAX, normalize=True, sum_eps=sum_eps)
    shared_inner = inner * config.integer("moe_num_shared_experts", 0, 2**10, 2)
    first = config.integer("moe_layer_start_index", 0, 4096, 1)
    last = config.integer("moe_layer_end_index", -1, 4096, -1)
    every = config.integer("moe_layer_interval", 1, 4096, 1)
    dense = gated_mlps(config)

    def ffn(layer: int) -> FfnSpec:
        if layer < first or 0 <= last < layer or (layer + 1) % every:
            return dense(layer)
        name = f"model.layers.{layer}.mlp"
        return moe(
            config,
            name,
            num_experts,
            inner,
            choice,
            correction="moe_statics.e_score_correction_bias",
            correction_axes=2,
            in_float32=True,
            shared=gated_mlp(config, f"{name}.shared_experts", shared_inner)
            if shared_inner
            else None,
        )

    return ffn


ERNIE4_5_MOE = Family(_describe, 131_072, bos_token_id=1, eos_token_id=2)
