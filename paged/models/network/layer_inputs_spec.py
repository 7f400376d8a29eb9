"""LayerInputsSpec and InputGateSpec: what each layer is given of the tokens, as values."""

from dataclasses import dataclass

from pagedrun.paged.models.network.embedding_spec import EmbeddingSpec
from pagedrun.paged.models.network.linear_spec import LinearSpec
from pagedrun.paged.models.network.mlp_spec import Activation
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.network.part import Part


@dataclass(frozen=True, slots=True)
class LayerInputsSpec:
    """For each layer a vector of `size` numbers a token, made before the first layer.

    `embedding` has the vectors of all layers side by side, and `projection` gives as many of what
    the first layer reads, times `projection_scale`; `norm` normalises each layer's. The input is
    their sum times `scale`.
    """

    num_layers: int
    size: int
    embedding: EmbeddingSpec
    projection: LinearSpec
    projection_scale: float
    norm: NormSpec
    scale: float = 0.5**0.5

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        return self.embedding, self.projection, self.norm

    @property
    def width(self) -> int:
        """Numbers that a token takes: its vectors, what is projected, and their sum."""
        return 3 * self.num_layers * self.size


@dataclass(frozen=True, slots=True)
class InputGateSpec:
    """How a layer adds its input to the residual stream, behind its feed-forward part.

    `out_norm(out(activation(gate(residual)) * input))`.
    """

    activation: Activation
    gate: LinearSpec
    out: LinearSpec
    out_norm: NormSpec

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        return self.gate, self.out, self.out_norm
