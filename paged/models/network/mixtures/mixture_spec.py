"""MixtureSpec: a mixture of experts, as a value."""

from dataclasses import dataclass, replace

from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.mixtures.clipped_swiglu import ClippedSwiglu
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertsSpec
from pagedrun.paged.models.network.mixtures.router_spec import RouterSpec
from pagedrun.paged.models.network.mlp_spec import Activation, MlpSpec
from pagedrun.paged.models.network.part import Part


@dataclass(frozen=True, slots=True)
class MixtureSpec:
    """Each token passes the experts that `router` chooses; their results are added with weights.

    All tokens also pass the `shared` expert, if there is one, whose result is multiplied by the
    sigmoid of `shared_gate`'s one output, or added as it is without one.
    """

    router: RouterSpec
    activation: Activation | ClippedSwiglu
    experts: ExpertsSpec
    shared: MlpSpec | None = None
    shared_gate: LinearSpec | None = None

    @property
    def num_chosen(self) -> int:
        """Experts that each token passes, the shared one left out."""
        return self.router.choice.num_chosen

    @property
    def intermediate_size(self) -> int:
        """Inner width of all networks that a token passes."""
        shared = 0 if self.shared is None else self.shared.intermediate_size
        return self.num_chosen * self.experts.intermediate_size + shared

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        shared = () if self.shared is None else self.shared.parts
        gate = () if self.shared_gate is None else (self.shared_gate,)
        return self.router, self.experts, *shared, *gate

    @property
    def width(self) -> int:
        """Numbers that a token takes: its inputs and outputs, gate, up and their product, k times.

        And the router's outputs, and what the shared expert takes.
        """
        of_expert = 2 * self.experts.hidden_size + 3 * self.experts.intermediate_size
        shared = 0 if self.shared is None else self.shared.width + self.experts.hidden_size
        return self.experts.num_experts + self.num_chosen * of_expert + shared

    def stored_as(self, stored: StoredTensors) -> "MixtureSpec":
        """Return it as a checkpoint holds it, whose tensors are those `stored`."""
        return replace(self, experts=self.experts.stored_as(stored))
