"""Mixtures whose scores are corrected sigmoids, of experts in groups, behind some dense layers."""

from collections.abc import Mapping

from pagedrun.kernels.experts.expert_choice import ExpertChoice
from pagedrun.kernels.experts.score import Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.ffns import FfnOfLayer, gated_mlp, gated_mlps
from pagedrun.paged.models.forms.mixtures import MixtureForm, number_of_experts
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.ffn_spec import FfnSpec
from pagedrun.paged.values.json_value import JSONValue

# What other models choose by, under the same names of fields.
_MEANT = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def sigmoid_mixtures(
    config: JsonObject, defaults: Mapping[str, JSONValue], num_experts: int | None = None
) -> FfnOfLayer:
    """Return the feed-forward part of each layer: the first `first_k_dense_replace` are dense.

    `defaults` has what a family assumes where config.json is silent, `num_experts` their number,
    None if that must be given. All tokens also pass the
    `n_shared_experts`, which are one network. Raises `ModelError` for what it cannot be.
    """
    config = config.with_defaults(defaults)
    for name, value in _MEANT.items():
        if config.string(name) not in (None, value):
            raise config.error(name, f'"{value}" for a model of this type')
    num_experts = number_of_experts(config, num_experts, "n_routed_experts")
    form = MixtureForm(
        num_experts,
        config.integer("moe_intermediate_size", 1, 2**22),
        _choice(config, num_experts),
        correction="gate.e_score_correction_bias",
        in_float32=True,
    )
    hidden, method = config.integer("hidden_size", 1, 2**20), linear_method(config)
    shared_inner = form.inner * config.integer("n_shared_experts", 1, 2**10)
    num_dense = config.integer("first_k_dense_replace", 0, 4096)
    dense = gated_mlps(config)

    def ffn(layer: int) -> FfnSpec:
        if layer < num_dense:
            return dense(layer)
        name = f"model.layers.{layer}.mlp"
        shared = gated_mlp(f"{name}.shared_experts", hidden, shared_inner, method)
        return form.mixture(config, name, shared)

    return ffn


def _choice(config: JsonObject, num_experts: int) -> ExpertChoice:
    num_groups = config.integer("n_group", 1, num_experts, 1)
    size = num_experts // num_groups
    if num_experts % num_groups or (num_groups > 1 and size < 2):
        wanted = f"a divisor of n_routed_experts, {num_experts}, with two experts in a group"
        raise config.error("n_group", wanted)
    num_chosen_groups = config.integer("topk_group", 1, num_groups, 1)
    return ExpertChoice(
        config.integer("num_experts_per_tok", 1, num_chosen_groups * size),
        Score.SIGMOID,
        config.boolean("norm_topk_prob", True),
        sum_eps=1e-20,
        scaling=config.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
        num_groups=num_groups,
        num_chosen_groups=num_chosen_groups,
    )
