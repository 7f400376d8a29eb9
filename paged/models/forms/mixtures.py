"""Mixtures of experts, read from config.json."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from pagedrun.kernels.experts.expert_choice import ExpertChoice
from pagedrun.kernels.experts.score import Score
from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.models.experts.separate import Separate
from pagedrun.paged.models.experts.stacked import Stacked
from pagedrun.paged.models.experts.stacked_apart import StackedApart
from pagedrun.paged.models.forms.ffns import FfnOfLayer, gated_mlp, gated_mlps
from pagedrun.paged.models.linears.registry import linear_method
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.linear_spec import LinearSpec, Projection
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertLayout, ExpertsSpec
from pagedrun.paged.models.network.mixtures.mixture_spec import MixtureSpec
from pagedrun.paged.models.network.mixtures.router_spec import RouterSpec
from pagedrun.paged.models.network.mlp_spec import MlpSpec

# Experts of all layers: far above what is published, and few enough to list their tensors.
_MAX_EXPERTS = 2**17


@dataclass(frozen=True, slots=True)
class MixtureForm:
    """`num_experts` of `inner` width, of which tokens make their `choice`.

    `router`, `correction` and `experts` say how the names of their tensors go on behind that of
    the mixture; `correction` None: there is none. `num_axes`: of the correction's tensor, of which
    all but the last have one element. `in_float32`: see `RouterSpec`.
    """

    num_experts: int
    inner: int
    choice: ExpertChoice
    layouts: tuple[ExpertLayout, ...] = (Separate(), Stacked())
    router: str = "gate"
    experts: str = ".experts"
    correction: str | None = None
    num_axes: int = 1
    in_float32: bool = False

    def mixture(self, config: JsonObject, name: str, shared: MlpSpec | None = None) -> MixtureSpec:
        """Return a mixture whose tensors have names that begin with `name`.

        `shared` is an expert that all tokens pass.
        """
        method, hidden = linear_method(config), config.integer("hidden_size", 1, 2**20)
        correction = None
        if self.correction is not None:
            shape = (*(1,) * (self.num_axes - 1), self.num_experts)
            correction = Parameter(f"{name}.{self.correction}", shape, Role.BIAS)
        router = Projection(f"{name}.{self.router}", self.num_experts)
        return MixtureSpec(
            RouterSpec(
                LinearSpec((router,), hidden, False, method, is_delicate=True),
                self.choice,
                correction,
                self.in_float32,
            ),
            activation="silu",
            experts=ExpertsSpec(
                f"{name}{self.experts}",
                self.num_experts,
                hidden,
                self.inner,
                self.layouts,
                method,
            ),
            shared=shared,
        )


@dataclass(frozen=True, slots=True)
class MixtureDefaults:
    """What a family assumes where config.json is silent.

    `inner_name` is the field for an expert's inner width, whose default is `inner`.
    """

    num_experts: int
    num_chosen: int
    inner: int
    inner_name: str = "moe_intermediate_size"


def mixture(
    config: JsonObject,
    name: str,
    defaults: MixtureDefaults,
    *,
    normalise: bool,
    projections: Separate,
) -> MixtureSpec:
    """Return a mixture whose weights are a softmax, without a shared expert.

    `name` is what its tensors' names begin with, `projections` the layout of a tensor for each
    expert; the stacked one is read as well. Raises `ModelError` for what it cannot be.
    """
    num_experts = number_of_experts(config, defaults.num_experts)
    num_chosen = config.integer("num_experts_per_tok", 1, num_experts, defaults.num_chosen)
    form = MixtureForm(
        num_experts,
        config.integer(defaults.inner_name, 1, 2**22, defaults.inner),
        ExpertChoice(num_chosen, Score.SOFTMAX, normalise),
        layouts=(projections, Stacked(), StackedApart()),
    )
    return form.mixture(config, name)


def qwen_mixtures(
    config: JsonObject, defaults: MixtureDefaults, *, shared_inner: int | None = None
) -> FfnOfLayer:
    """Return the feed-forward part of each layer: some are dense, the others mixtures.

    `shared_inner` is the inner width of a shared expert with a gate; None: there is none.
    """
    normalise = config.boolean("norm_topk_prob", False)
    every = config.integer("decoder_sparse_step", 1, 2**20, 1)
    dense_layers, dense = _mlp_only_layers(config), gated_mlps(config)
    ffn = gated_mixtures(config, defaults, shared_inner, normalise=normalise)

    def is_dense(layer: int) -> bool:
        return layer in dense_layers or (layer + 1) % every != 0

    return lambda layer: dense(layer) if is_dense(layer) else ffn(layer)


def gated_mixtures(
    config: JsonObject, defaults: MixtureDefaults, shared_inner: int | None, *, normalise: bool
) -> FfnOfLayer:
    """Return the feed-forward part of each layer where all are mixtures; see `qwen_mixtures`."""
    hidden, method = config.integer("hidden_size", 1, 2**20), linear_method(config)

    def ffn(layer: int) -> MixtureSpec:
        name = f"model.layers.{layer}.mlp"
        plain = mixture(config, name, defaults, normalise=normalise, projections=Separate())
        if shared_inner is None:
            return plain
        gate = Projection(f"{name}.shared_expert_gate", 1)
        return replace(
            plain,
            shared=gated_mlp(f"{name}.shared_expert", hidden, shared_inner, method),
            shared_gate=LinearSpec((gate,), hidden, False, method, is_delicate=True),
        )

    return ffn


def number_of_experts(config: JsonObject, default: int | None, name: str = "num_experts") -> int:
    """Read a field that has two names: in the hub's files, and in what transformers 5 saves.

    `name` is the first of them; `default` None: it must be given.
    """
    other = "num_local_experts"
    name = other if config.has(other) and not config.has(name) else name
    most = _MAX_EXPERTS // config.integer("num_hidden_layers", 1, 4096)
    return config.integer(name, 1, most, default)


def _mlp_only_layers(config: JsonObject) -> Collection[int]:
    layers = config.get("mlp_only_layers")
    if layers is None:
        return ()
    if not isinstance(layers, list) or not all(is_integer(each) for each in layers):
        raise config.error("mlp_only_layers", "a list of layer indices")
    return frozenset(each for each in layers if is_integer(each))
