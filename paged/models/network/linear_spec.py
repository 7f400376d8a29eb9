"""LinearSpec: a linear layer, as a value; LinearMethod: how a checkpoint holds it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.row_order import RowOrder
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.linear import Linear
    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource


class LinearMethod(Protocol):
    """One way of holding the weights of linear layers, in a checkpoint and in memory.

    Dense matrices are one; each kind of quantised weights is another. A method is a value: two of
    the same class and fields are equal, and their `repr` says everything that their results depend
    on. Importing it imports no torch.
    """

    def parameters(
        self, linear: "LinearSpec", stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return the tensors that a checkpoint must have for a linear layer.

        `stored` says what it has, where there is one: a method may know several ways of storing
        the same weights.
        """
        ...

    def num_bytes(self, linear: "LinearSpec", dtype_bytes: int) -> int:
        """Return the bytes of its weights in memory; `dtype_bytes`: of one of its results."""
        ...

    def load(self, linear: "LinearSpec", source: "WeightSource") -> "Linear":
        """Return the layer with its weights; its outputs are those of the parts side by side."""
        ...

    def matrix(self, linear: "LinearSpec", source: "WeightSource") -> "PackedWeight | Tensor":
        """Return the weights of a layer of one part, for one expert of many, [out_features,
        in_features]: in the dtype of `source`, or as codes where it holds such experts."""
        ...


@runtime_checkable
class CodesMethod(LinearMethod, Protocol):
    """One whose weights stay in few bits where a backend computes with these."""

    def held_bytes(self, linear: "LinearSpec", dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of a layer's weights there; `codes` says which stay in few bits."""
        ...


@runtime_checkable
class CodeMatrices(LinearMethod, Protocol):
    """One by which experts stay in few bits where a backend computes with these."""

    def matrix_bytes(self, linear: "LinearSpec", dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of what `matrix` returns; `codes` says which stay in few bits."""
        ...


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer of the checkpoint, by the name before `.weight`.

    `order`: what a method brings its outputs into; None: they are as kernels want them.
    """

    name: str
    out_features: int
    order: RowOrder | None = None


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """Projections of the same input, computed as one product: their outputs lie side by side.

    `method` is how their weights are held. `has_bias` holds for all of them. `is_delicate`: small
    differences of its results have large effects, so weights are not rounded that are stored plain.
    """

    parts: tuple[Projection, ...]
    in_features: int
    has_bias: bool
    method: LinearMethod
    is_delicate: bool = False

    @property
    def out_features(self) -> int:
        """Elements of a row of the output."""
        return sum(part.out_features for part in self.parts)

    @property
    def num_weights(self) -> int:
        """How many numbers its matrices and biases have, however they are held."""
        return self.out_features * (self.in_features + self.has_bias)

    def parameters(self, stored: StoredTensors = NOTHING_STORED) -> tuple[Parameter, ...]:
        """Return the tensors of all parts."""
        return self.method.parameters(self, stored)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the weights."""
        return self.method.num_bytes(self, dtype_bytes)

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the weights where few bits among the `codes` stay few."""
        if isinstance(self.method, CodesMethod):
            return self.method.held_bytes(self, dtype_bytes, codes)
        return self.num_bytes(dtype_bytes)

    def load(self, source: "WeightSource") -> "Linear":
        """Return the layer with its weights."""
        return self.method.load(self, source)

    def matrix_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of what `matrix` returns."""
        if isinstance(self.method, CodeMatrices):
            return self.method.matrix_bytes(self, dtype_bytes, codes)
        return self.num_weights * dtype_bytes

    def matrix(self, source: "WeightSource") -> "PackedWeight | Tensor":
        """Return the weights of a layer of one part, [out_features, in_features]."""
        return self.method.matrix(self, source)
