"""Mixture: a mixture of experts with its weights."""

from torch import Tensor

from pagedrun.kernels.experts.routing import ExpertRows
from pagedrun.paged.models.layers.mlp import Mlp, activation
from pagedrun.paged.models.layers.router import Router
from pagedrun.paged.models.network.mixtures.mixture_spec import MixtureSpec
from pagedrun.paged.models.weight_source import WeightSource


class Mixture:
    """A token's result depends on the experts that it chooses, not on who else chooses them.

    `scales`, [num_experts] float32, multiply the weights of the experts that are chosen.
    """

    def __init__(
        self, spec: MixtureSpec, source: WeightSource, scales: Tensor | None = None
    ) -> None:
        self._spec = spec
        self._scales = scales
        self._kernels = source.kernels
        self._activate = activation(spec.activation, source.kernels)
        self._router = Router(spec.router, source)
        matrices = spec.experts.load(source)
        pack = source.pack_experts
        self._gate_up = pack([matrices.gate, matrices.up], matrices.gate_up_bias)
        self._down = pack([matrices.down], matrices.down_bias)
        self._shared = None if spec.shared is None else Mlp(spec.shared, source)
        self._shared_gate = None if spec.shared_gate is None else spec.shared_gate.load(source)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights of all experts."""
        parts = (self._router, self._gate_up, self._down, self._shared, self._shared_gate)
        scales = 0 if self._scales is None else self._scales.nbytes
        return scales + sum(part.num_bytes for part in parts if part is not None)

    def __call__(self, x: Tensor, routed: Tensor | None = None) -> Tensor:
        """Map x [num_tokens, hidden_size] to the same shape and dtype.

        routed: the same shape, what the router reads; None: x.
        """
        spec, kernels = self._spec, self._kernels
        routing = self._router(x if routed is None else routed)
        weights = routing.weights
        if self._scales is not None:
            weights = weights * self._scales[routing.experts]
        by_expert = ExpertRows.of(routing.experts, spec.experts.num_experts)
        inner = self._activate(self._gate_up(x, by_expert.starts, by_expert.tokens))
        return kernels.combine_experts(
            self._down(inner, by_expert.starts),
            by_expert.rows,
            weights,
            None if self._shared is None else self._shared(x),
            None if self._shared_gate is None else self._shared_gate(x),
        )
