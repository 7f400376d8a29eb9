"""WeightFormat: one way of storing the matrix of a projection in few bits."""

from typing import TYPE_CHECKING, Protocol

from pagedrun.paged.models.network.linear_spec import Projection
from pagedrun.paged.models.network.parameter import Parameter
from pagedrun.paged.models.network.stored_tensors import StoredTensors

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.paged.models.weight_source import WeightSource


class WeightFormat(Protocol):
    """A value, as a `LinearMethod` is; importing it imports no torch."""

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return the tensors that hold a projection's matrix, None if it is stored otherwise."""
        ...

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the matrix [out_features, in_features] in the dtype of `source`.

        Raises `ModelError` for tensors that contradict each other or hold no finite numbers.
        """
        ...
