"""A mixture of experts beside a dense part, read from config.json, under Gemma's names."""

from pagedrun.kernels.experts.expert_choice import ExpertChoice
from pagedrun.kernels.experts.score import Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.experts.separate import Separate
from pagedrun.paged.models.experts.stacked import Stacked
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertsSpec
from pagedrun.paged.models.network.mixtures.mixture_spec import MixtureSpec
from pagedrun.paged.models.network.mixtures.router_spec import RouterSpec
from pagedrun.paged.models.network.mixtures.side_mixture_spec import SideMixtureSpec
from pagedrun.paged.models.network.mlp_spec import Activation
from pagedrun.paged.models.network.scale_spec import ScaleSpec


def side_mixture(
    config: JsonObject, layer: int, norm: NormForm, activation: Activation
) -> SideMixtureSpec:
    """Return the mixture of a layer. Raises `ModelError` for what it cannot be."""
    name, method = f"model.layers.{layer}", linear_method(config)
    hidden = config.integer("hidden_size", 1, 2**20)
    num_experts = config.integer("num_experts", 1, 2**14)
    inner = config.integer("moe_intermediate_size", 1, 2**22)
    router = Projection(f"{name}.router.proj", num_experts)
    num_chosen = config.integer("top_k_experts", 1, num_experts)
    return SideMixtureSpec(
        MixtureSpec(
            RouterSpec(
                LinearSpec((router,), hidden, has_bias=False, method=method, is_delicate=True),
                ExpertChoice(num_chosen, Score.SOFTMAX, normalise=True),
            ),
            activation=activation,
            experts=ExpertsSpec(
                f"{name}.experts", num_experts, hidden, inner, (Stacked(), Separate()), method
            ),
        ),
        router_scale=ScaleSpec(f"{name}.router.scale", hidden),
        router_factor=hidden**-0.5,
        expert_scales=ScaleSpec(f"{name}.router.per_expert_scale", num_experts),
        norm=norm.named(f"{name}.pre_feedforward_layernorm_2", hidden),
        out_norm=norm.named(f"{name}.post_feedforward_layernorm_2", hidden),
        dense_norm=norm.named(f"{name}.post_feedforward_layernorm_1", hidden),
    )
