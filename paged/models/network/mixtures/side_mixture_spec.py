"""SideMixtureSpec: a mixture of experts beside a dense feed-forward part, as a value."""

from dataclasses import dataclass, replace

from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors
from pagedrun.paged.models.network.mixtures.mixture_spec import MixtureSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.network.part import Part
from pagedrun.paged.models.network.scale_spec import ScaleSpec


@dataclass(frozen=True, slots=True)
class SideMixtureSpec:
    """`dense_norm(what the dense part gives) + out_norm(mixture(norm(residual)))`.

    The router reads the residual stream too, normalised with `router_scale` times `router_factor`
    in the place of a weight, and `expert_scales` multiply the weights of the experts it chooses.
    """

    mixture: MixtureSpec
    router_scale: ScaleSpec
    router_factor: float
    expert_scales: ScaleSpec
    norm: NormSpec
    out_norm: NormSpec
    dense_norm: NormSpec

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        scales = (self.router_scale, self.expert_scales)
        return *self.mixture.parts, *scales, self.norm, self.out_norm, self.dense_norm

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point."""
        return self.mixture.width + 3 * self.norm.size

    def stored_as(self, stored: StoredTensors) -> "SideMixtureSpec":
        """Return it as a checkpoint holds it, whose tensors are those `stored`."""
        return replace(self, mixture=self.mixture.stored_as(stored))
