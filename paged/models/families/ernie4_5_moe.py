"""ERNIE 4.5 with mixtures: a softmax that is corrected where experts are compared."""

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensor_names import NamedTensors
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.ernie4_5 import ernie_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads
from pagedrun.paged.models.modules.mlp import FfnOfLayer, FfnSpec, gated_mlp, gated_mlps
from pagedrun.paged.models.modules.moe import MoeForm, read_num_experts
from pagedrun.paged.models.quant.registry import linear_method

# Of layers that guess several tokens ahead.
_TENSORS = NamedTensors(dropped=("model.mtp_",))


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    if config.boolean("use_bias", False):
        raise config.error("use_bias", "false for a model of this type, whose head has no bias")
    config = config.with_defaults({"intermediate_size": 12_288})
    heads = Heads.from_json(config, num_kv_heads=4)
    return ernie_decoder(config, max_positions, heads, _moe(config), _TENSORS)


def _moe(config: JsonObject) -> FfnOfLayer:
    num_experts = read_num_experts(config, 64, "moe_num_experts")
    num_chosen = config.integer("moe_k", 1, num_experts, 6)
    form = MoeForm(
        num_experts,
        config.integer("moe_intermediate_size", 1, 2**22, 1536),
        # The least that weights are divided by: as an addend, where sums are not as small.
        ExpertChoice(
            num_chosen,
            Score.SOFTMAX,
            normalize=True,
            sum_eps=config.number("moe_norm_min", 0.0, 1e-6, 1e-12),
        ),
        correction="moe_statics.e_score_correction_bias",
        num_axes=2,
        in_float32=True,
    )
    hidden, method = config.integer("hidden_size", 1, 2**20), linear_method(config)
    shared_inner = form.inner * config.integer("moe_num_shared_experts", 0, 2**10, 2)
    first = config.integer("moe_layer_start_index", 0, 4096, 1)
    last = config.integer("moe_layer_end_index", -1, 4096, -1)
    every = config.integer("moe_layer_interval", 1, 4096, 1)
    dense = gated_mlps(config)

    def ffn(layer: int) -> FfnSpec:
        if layer < first or 0 <= last < layer or (layer + 1) % every:
            return dense(layer)
        name, shared = f"model.layers.{layer}.mlp", None
        if shared_inner:
            shared = gated_mlp(f"{name}.shared_experts", hidden, shared_inner, method)
        return form.spec(config, name, shared)

    return ffn


ERNIE4_5_MOE = Family(_describe, 131_072, bos_token_id=1, eos_token_id=2)
