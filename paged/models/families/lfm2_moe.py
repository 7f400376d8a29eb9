"""LFM2 with mixtures: the first layers are dense, the others have corrected sigmoid mixtures."""

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.lfm2 import GATE_UP_DOWN, lfm2_decoder, with_new_names
from pagedrun.paged.models.modules.mlp import FfnOfLayer, FfnSpec, gated_mlp
from pagedrun.paged.models.modules.moe import MoeForm, read_num_experts
from pagedrun.paged.models.quant.expert_layouts import PerExpert, Stacked
from pagedrun.paged.models.quant.registry import linear_method


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
    form = MoeForm(
        num_experts,
        config.integer("moe_intermediate_size", 1, 2**22, 1792),
        choice,
        layouts=(PerExpert(*GATE_UP_DOWN), Stacked()),
        correction="expert_bias" if config.boolean("use_expert_bias", True) else None,
    )
    hidden, method = config.integer("hidden_size", 1, 2**20), linear_method(config)
    inner = config.integer("intermediate_size", 1, 2**22, 7168)
    num_dense = config.integer("num_dense_layers", 0, 4096, 2)

    def ffn(layer: int) -> FfnSpec:
        name = f"model.layers.{layer}.feed_forward"
        if layer < num_dense:
            return gated_mlp(name, hidden, inner, method, names=GATE_UP_DOWN)
        return form.spec(config, name)

    return ffn


LFM2_MOE = Family(_describe, 128_000, bos_token_id=1, eos_token_id=2)
