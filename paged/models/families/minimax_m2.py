"""MiniMax-M2: norms across all heads, sigmoid MoE layers, partial rotary embeddings."""

from functools import partial

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
)
from pagedrun.paged.models.modules.mlp import check_activation
from pagedrun.paged.models.modules.moe import FfnOfLayer, moe, read_num_experts
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.quant.expert_layouts import PerExpert, Stacked

_LAYOUTS = (PerExpert(gate="w1", up="w3", down="w2"), Stacked())


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads = Heads.from_json(config, num_kv_heads=8, head_dim=128)
    # Files on the hub have the number of rotated elements of a head instead of a share.
    share = config.integer("rotary_dim", 1, heads.head_dim, heads.head_dim) / heads.head_dim
    rope = RopeConfig.from_json(config, max_positions, theta=5_000_000.0, rotated=share)
    norm = NormForm.from_json(config)
    qk_norm = QkNormForm(across_heads=True)
    mixer = partial(attention, config, heads, norm, rope, None, qk_norm=qk_norm)
    return decoder(config, max_positions, norm, mixer, _ffns(config))


def _ffns(config: JsonObject) -> FfnOfLayer:
    check_activation(config, "silu")
    if config.string("scoring_func") not in (None, "sigmoid"):
        raise config.error("scoring_func", '"sigmoid" for a model of this type')
    num_experts = read_num_experts(config, 256)
    num_chosen = config.integer("num_experts_per_tok", 1, num_experts, 8)
    inner = config.integer("intermediate_size", 1, 2**22, 1536)
    return lambda layer: moe(
        config,
        f"model.layers.{layer}.block_sparse_moe",
        num_experts,
        inner,
        ExpertChoice(num_chosen, Score.SIGMOID, normalize=True),
        layouts=_LAYOUTS,
        correction="e_score_correction_bias",
    )


MINIMAX_M2 = Family(_describe, 196_608, bos_token_id=200_034, eos_token_id=200_020)
