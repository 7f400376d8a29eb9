"""WeightFormat: one way of storing the matrix of a projection in few bits."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pagedrun.kernels.code_form import CodeForm
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors
from pagedrun.paged.models.network.linear_spec import Projection

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
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


@runtime_checkable
class PackedFormat(WeightFormat, Protocol):
    """A format whose codes can be computed with as they are."""

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return what `packed` has the form of, for tensors that `parameters` returned."""
        ...

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales, on the device of `source`, of which `weight` makes the matrix.

        Raises `ModelError` for tensors that contradict each other.
        """
        ...
