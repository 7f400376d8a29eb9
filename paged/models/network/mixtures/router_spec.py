"""RouterSpec: what chooses the experts of a mixture, as a value."""

from dataclasses import dataclass

from pagedrun.kernels.experts.expert_choice import ExpertChoice
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearSpec

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """`linear` gives each expert a logit, from which `choice` makes scores, experts and weights.

    `correction`, if there is one, has a number for each expert that is added to its score where
    scores are compared; training moves it so that all experts are chosen about as often. It is held
    in float32. `in_float32`: the weights and the product are so too, whatever the model's dtype.
    """

    linear: LinearSpec
    choice: ExpertChoice
    correction: Parameter | None = None
    in_float32: bool = False

    @property
    def num_experts(self) -> int:
        """Experts that there are."""
        return self.linear.out_features

    @property
    def num_weights(self) -> int:
        """How many numbers the matrix, its bias and the correction have, however they are held."""
        correction = 0 if self.correction is None else self.correction.num_values
        return self.linear.num_weights + correction

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the matrix, its bias if any, and the correction."""
        correction = () if self.correction is None else (self.correction,)
        return *self.linear.parameters(stored), *correction

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all of them."""
        correction = 0 if self.correction is None else self.correction.num_values
        of_matrix = _FLOAT32_BYTES if self.in_float32 else dtype_bytes
        return _FLOAT32_BYTES * correction + self.linear.num_bytes(of_matrix)
