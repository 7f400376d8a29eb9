"""Mixture-of-experts (MoE) layers: description and its reading from config.json.

A router scores the experts of a layer and chooses some for each token: by softmax (Qwen, Mixtral),
or by sigmoids with a correction bias within groups of experts, as in DeepSeek-V3 (dots1, GLM-4.5).
Shared experts are MLPs for all tokens. Gemma 4 has an MoE layer beside a dense MLP
(`ParallelMoeSpec`). The computation is in `moe_layer`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    HeldCodes,
    Parameter,
    Part,
    Role,
    StoredLinear,
    StoredTensors,
)
from pagedrun.paged.models.modules.linear import ExpertLayout, ExpertsSpec, LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import Activation, MlpSpec, gated_mlp, gated_mlps
from pagedrun.paged.models.modules.norm import NormSpec
from pagedrun.paged.models.quant.expert_layouts import PerExpert, Stacked, StackedProjections
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.json_value import JSONValue


@dataclass(frozen=True, slots=True)
class ClippedSwiglu:
    """`(up + 1) * gate * sigmoid(alpha * gate)`; gates are at most `limit`, ups within ±limit."""

    limit: float
    alpha: float


@dataclass(frozen=True, slots=True)
class RouterSpec(Part):
    """Description of a router: `linear` gives expert logits, `choice` scores, experts and weights.

    `correction`, [num_experts] float32, is added to scores where they are compared; training
    adjusts it to balance the load of experts. `in_float32`: the linear layer computes in float32
    whatever the model's dtype.
    """

    linear: LinearSpec
    choice: ExpertChoice
    correction: Parameter | None = None
    in_float32: bool = False

    @property
    def num_experts(self) -> int:
        """Number of experts."""
        return self.linear.out_features

    @property
    def num_weights(self) -> int:
        """Number of values of the matrix, its bias and the correction, whatever their format."""
        return self.linear.num_weights + sum(each.num_weights for each in self._corrections)

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the matrix, its bias if any, and the correction."""
        return *self.linear.parameters(stored), *self._corrections

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the matrix, its bias and the correction."""
        correction = sum(each.num_bytes(dtype_bytes) for each in self._corrections)
        return correction + self.linear.num_bytes(4 if self.in_float32 else dtype_bytes)

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the same where the weights in `codes` stay quantized."""
        correction = sum(each.num_bytes(dtype_bytes) for each in self._corrections)
        if not self.in_float32:
            return correction + self.linear.held_bytes(dtype_bytes, codes)
        return correction + self.linear.held_bytes(4, replace(codes, dtype="float32"))

    def linears(self, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the linear layer of a checkpoint that has the tensors `stored`."""
        return self.linear.linears(stored)

    @property
    def _corrections(self) -> tuple[Parameter, ...]:
        return () if self.correction is None else (self.correction,)


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Description of an MoE layer: a weighted sum of the experts that `router` chooses for a token.

    The result of the `shared` expert of all tokens, if any, is multiplied by the sigmoid of the
    output of `shared_gate`, if any, and added.
    """

    router: RouterSpec
    activation: Activation | ClippedSwiglu
    experts: ExpertsSpec
    shared: MlpSpec | None = None
    shared_gate: LinearSpec | None = None

    @property
    def num_chosen(self) -> int:
        """Experts of a token, without the shared one."""
        return self.router.choice.num_chosen

    @property
    def intermediate_size(self) -> int:
        """Inner width of all experts of a token."""
        shared = 0 if self.shared is None else self.shared.intermediate_size
        return self.num_chosen * self.experts.intermediate_size + shared

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        shared = () if self.shared is None else self.shared.parts
        gate = () if self.shared_gate is None else (self.shared_gate,)
        return self.router, self.experts, *shared, *gate

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token.

        Inputs, outputs, gate, up and their product of each chosen expert, the outputs of the
        router and the activations of the shared expert.
        """
        of_expert = 2 * self.experts.hidden_size + 3 * self.experts.intermediate_size
        shared = 0 if self.shared is None else self.shared.width + self.experts.hidden_size
        return self.experts.num_experts + self.num_chosen * of_expert + shared

    def stored_as(self, stored: StoredTensors) -> "MoeSpec":
        """Return the layer in the layout of a checkpoint that has the tensors `stored`."""
        return replace(self, experts=self.experts.stored_as(stored))


@dataclass(frozen=True, slots=True)
class ParallelMoeSpec:
    """MoE layer beside a dense part: `dense_norm(dense output) + out_norm(moe(norm(residual)))`.

    The router reads the residual stream, normalized with `router_scale * router_factor` as its
    weight; `expert_scales` multiply the weights of the chosen experts.
    """

    moe: MoeSpec
    router_scale: Parameter
    router_factor: float
    expert_scales: Parameter
    norm: NormSpec
    out_norm: NormSpec
    dense_norm: NormSpec

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        scales = (self.router_scale, self.expert_scales)
        return *self.moe.parts, *scales, self.norm, self.out_norm, self.dense_norm

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token."""
        return self.moe.width + 3 * self.norm.size

    def stored_as(self, stored: StoredTensors) -> "ParallelMoeSpec":
        """Return the layer in the layout of a checkpoint that has the tensors `stored`."""
        return replace(self, moe=self.moe.stored_as(stored))


FfnSpec = MlpSpec | MoeSpec
FfnOfLayer = Callable[[int], FfnSpec]
_PER_EXPERT = PerExpert()


def moe(
    config: JsonObject,
    name: str,
    num_experts: int,
    inner: int,
    choice: ExpertChoice,
    *,
    activation: Activation | ClippedSwiglu = "silu",
    layouts: tuple[ExpertLayout, ...] = (_PER_EXPERT, Stacked()),
    router: str = "gate",
    experts: str = ".experts",
    has_bias: bool = False,
    correction: str | None = None,
    correction_axes: int = 1,
    in_float32: bool = False,
    shared: MlpSpec | None = None,
    shared_gate: LinearSpec | None = None,
) -> MoeSpec:
    """Return an MoE layer of `num_experts` of `inner` width.

    Tensor names begin with `name`, followed by `router`, `correction` (None: no correction) and
    `experts`. `correction_axes`: axes of the correction's tensor, all but the last of length 1.
    `has_bias`: of router and experts. `in_float32`: see `RouterSpec`.
    """
    method, hidden = linear_method(config), config.integer("hidden_size", 1, 2**20)
    scores = None
    if correction is not None:
        shape = (*(1,) * (correction_axes - 1), num_experts)
        scores = Parameter(f"{name}.{correction}", shape, Role.BIAS, in_float32=True)
    logits = (Projection(f"{name}.{router}", num_experts),)
    linear = LinearSpec(logits, hidden, has_bias, method, keep_precision=True)
    return MoeSpec(
        RouterSpec(linear, choice, scores, in_float32),
        activation,
        ExpertsSpec(f"{name}{experts}", num_experts, hidden, inner, layouts, method, has_bias),
        shared,
        shared_gate,
    )


def softmax_moe(
    config: JsonObject,
    name: str,
    num_experts: int,
    num_chosen: int,
    inner: int,
    *,
    normalize: bool,
    inner_name: str = "moe_intermediate_size",
    projections: PerExpert = _PER_EXPERT,
    shared_inner: int | None = None,
) -> MoeSpec:
    """Return an MoE layer with softmax weights and tensor names that begin with `name`.

    `num_experts`, `num_chosen` and `inner` are defaults; `inner_name` is the field of config.json
    for the inner width of an expert. `projections` is the layout with a tensor for each expert;
    stacked layouts are read too. `shared_inner`: inner width of a shared expert with a gate, None
    without one. Raises `ModelError` for inconsistent numbers.
    """
    num_experts = read_num_experts(config, num_experts)
    num_chosen = config.integer("num_experts_per_tok", 1, num_experts, num_chosen)
    shared = shared_gate = None
    if shared_inner is not None:
        shared = gated_mlp(config, f"{name}.shared_expert", shared_inner)
        gate, hidden = Projection(f"{name}.shared_expert_gate", 1), shared.gate_up.in_features
        shared_gate = LinearSpec((gate,), hidden, False, shared.gate_up.method, keep_precision=True)
    return moe(
        config,
        name,
        num_experts,
        config.integer(inner_name, 1, 2**22, inner),
        ExpertChoice(num_chosen, Score.SOFTMAX, normalize),
        layouts=(projections, Stacked(), StackedProjections()),
        shared=shared,
        shared_gate=shared_gate,
    )


def qwen_moe(
    config: JsonObject,
    num_experts: int,
    num_chosen: int,
    inner: int,
    shared_inner: int | None = None,
) -> FfnOfLayer:
    """Return the feed-forward parts of all layers, some dense and the others MoE, by layer index.

    The numbers are those of `softmax_moe`.
    """
    normalize = config.boolean("norm_topk_prob", False)
    every = config.integer("decoder_sparse_step", 1, 2**20, 1)
    dense_layers, dense = _mlp_only_layers(config), gated_mlps(config)

    def ffn(layer: int) -> FfnSpec:
        if layer in dense_layers or (layer + 1) % every != 0:
            return dense(layer)
        return softmax_moe(
            config,
            f"model.layers.{layer}.mlp",
            num_experts,
            num_chosen,
            inner,
            normalize=normalize,
            shared_inner=shared_inner,
        )

    return ffn


# Limit of experts in all layers: far above published models, and few enough to list tensors.
_MAX_EXPERTS = 2**17


def read_num_experts(config: JsonObject, default: int | None, name: str = "num_experts") -> int:
    """Read the number of experts under `name`, or under the name that transformers 5 saves.

    `default` None: the field is required.
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


# The only supported values of fields that select a router.
_SUPPORTED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def sigmoid_moe(
    config: JsonObject, defaults: Mapping[str, JSONValue], num_experts: int | None = None
) -> FfnOfLayer:
    """Return the feed-forward parts of all layers, the first `first_k_dense_replace` dense.

    `defaults` are those of a family for fields of config.json; `num_experts` None: the field is
    required. The `n_shared_experts` are one MLP. Raises `ModelError` for inconsistent numbers and
    for other routers.
    """
    config = config.with_defaults(defaults)
    for name, value in _SUPPORTED.items():
        if config.string(name) not in (None, value):
            raise config.error(name, f'"{value}" for a model of this type')
    num_experts = read_num_experts(config, num_experts, "n_routed_experts")
    inner = config.integer("moe_intermediate_size", 1, 2**22)
    choice = _choice(config, num_experts)
    shared_inner = inner * config.integer("n_shared_experts", 1, 2**10)
    num_dense = config.integer("first_k_dense_replace", 0, 4096)
    dense = gated_mlps(config)

    def ffn(layer: int) -> FfnSpec:
        if layer < num_dense:
            return dense(layer)
        name = f"model.layers.{layer}.mlp"
        return moe(
            config,
            name,
            num_experts,
            inner,
            choice,
            correction="gate.e_score_correction_bias",
            in_float32=True,
            shared=gated_mlp(config, f"{name}.shared_experts", shared_inner),
        )

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
