"""Mixture-of-experts (MoE) layers with weights.

Tokens are sorted by expert for one grouped product of all experts. The result of a token depends
on its own experts and weights, not on the other tokens of a batch.
"""

from functools import partial

import torch
from torch import Tensor

from pagedrun.kernels.op_values import ExpertRows, Routing
from pagedrun.kernels.ops import GroupedLinear
from pagedrun.paged.models.checkpoint.weight_source import WeightSource, num_bytes
from pagedrun.paged.models.modules.linear import ExpertsSpec
from pagedrun.paged.models.modules.mlp_layer import Mlp, activation
from pagedrun.paged.models.modules.moe import MoeSpec, ParallelMoeSpec, RouterSpec
from pagedrun.paged.models.modules.norm_layer import Norm


class Moe:
    """MoE layer with weights.

    `scales`, [num_experts] float32, multiply the weights of chosen experts.
    """

    def __init__(self, spec: MoeSpec, source: WeightSource, scales: Tensor | None = None) -> None:
        self._spec = spec
        self._scales = scales
        self._kernels = source.kernels
        self._activate = activation(spec.activation, source.kernels)
        self._router = Router(spec.router, source)
        self._use = source.expert_use(spec.num_chosen)
        self._gate_up, self._down = source.layer(partial(_packed_experts, spec.experts, source))
        self._shared = None if spec.shared is None else Mlp(spec.shared, source)
        self._shared_gate = None if spec.shared_gate is None else spec.shared_gate.load(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(
            *(self._router, self._gate_up, self._down),
            *(self._shared, self._shared_gate, self._scales),
        )

    def __call__(self, x: Tensor, routed: Tensor | None = None) -> Tensor:
        """Map x [num_tokens, hidden_size] to the same shape and dtype.

        routed: input of the router, of the same shape; None: x.
        """
        spec, kernels = self._spec, self._kernels
        routing = self._router(x if routed is None else routed)
        weights = routing.weights
        if self._scales is not None:
            weights = weights * self._scales[routing.experts]
        by_expert = ExpertRows.of(routing.experts, spec.experts.num_experts)
        if self._use is not None:
            self._use(by_expert.starts)
        inner = self._activate(self._gate_up(x, by_expert.starts, by_expert.tokens))
        return kernels.combine_experts(
            self._down(inner, by_expert.starts),
            by_expert.rows,
            weights,
            None if self._shared is None else self._shared(x),
            None if self._shared_gate is None else self._shared_gate(x),
        )


def _packed_experts(spec: ExpertsSpec, source: WeightSource) -> tuple[GroupedLinear, GroupedLinear]:
    """Return the products before and behind the activation."""
    matrices, pack = spec.load(source), source.pack_experts
    gate_up = pack([matrices.gate, matrices.up], matrices.gate_up_bias)
    return gate_up, pack([matrices.down], matrices.down_bias)


class Router:
    """Router with weights: the experts of a token depend on the token alone."""

    def __init__(self, spec: RouterSpec, source: WeightSource) -> None:
        self._choice = spec.choice
        self._kernels = source.kernels
        self._dtype = torch.float32 if spec.in_float32 else source.dtype
        self._linear = spec.linear.load(source.of_dtype(self._dtype))
        self._correction: Tensor | None = None
        if spec.correction is not None:
            self._correction = source.tensor(spec.correction).flatten()

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return num_bytes(self._linear, self._correction)

    def __call__(self, x: Tensor) -> Routing:
        """Return the experts of each token; x: [num_tokens, hidden_size]."""
        logits = self._linear(x.to(self._dtype))
        return self._kernels.route(logits, self._choice, self._correction)


class ParallelMoe:
    """MoE layer beside a dense part, with weights."""

    def __init__(self, spec: ParallelMoeSpec, source: WeightSource) -> None:
        scales = source.tensor(spec.expert_scales)
        self._moe = Moe(spec.moe, source, scales)
        # In float32: the product has more digits than a weight.
        scale = source.tensor(spec.router_scale)
        self._router_scale = scale * spec.router_factor
        self._norm = Norm(spec.norm, source)
        self._out_norm = Norm(spec.out_norm, source)
        self._dense_norm = Norm(spec.dense_norm, source)
        self._eps = spec.norm.eps
        self._dtype = source.dtype
        self._kernels = source.kernels

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        norms = (self._norm, self._out_norm, self._dense_norm)
        return num_bytes(self._moe, self._router_scale, *norms)

    def __call__(self, dense: Tensor, residual: Tensor) -> Tensor:
        """Return the sum of both parts, in the model's dtype.

        dense: [num_tokens, hidden_size], output of the dense part. residual: its input before the
        norm, of the same shape, float32.
        """
        routed = self._kernels.rms_norm(residual, self._router_scale, self._eps, self._dtype)
        mixed = self._moe(self._norm.normalize(residual), routed)
        return self._dense_norm.normalize(dense) + self._out_norm.normalize(mixed)
