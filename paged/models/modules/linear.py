"""Linear layers and experts: descriptions and the interfaces of weight formats.

A `LinearSpec` is one product of several projections of the same input, an `ExpertsSpec` the gated
MLPs of an MoE layer. Each names the format of its weights: a `LinearMethod` (dense, or one kind of
quantization) and, for experts, an `ExpertLayout` (one tensor for each projection and expert, or
stacked tensors). Methods and layouts are values; importing them does not import torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    HeldCodes,
    Parameter,
    Part,
    RowOrder,
    StoredLinear,
    StoredTensors,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.ops import Linear
    from pagedrun.kernels.quantized_form import CodeForm
    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource


class LinearMethod(ABC):
    """Storage of the weights of linear layers, in a checkpoint and in memory.

    Dense matrices are one method, each kind of quantized weights another. Methods are frozen
    dataclasses, compared by value; results depend on class and fields alone, and `repr` shows
    both. Importing one imports no torch.
    """

    __slots__ = ()

    @abstractmethod
    def parameters(
        self, linear: "LinearSpec", stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the tensors that a checkpoint must have for a linear layer.

        A method may read several layouts of the same weights: `stored` selects one.
        """

    @abstractmethod
    def num_bytes(self, linear: "LinearSpec", dtype_bytes: int) -> int:
        """Return the bytes of the weights in memory; `dtype_bytes`: of one output element."""

    @abstractmethod
    def load(self, linear: "LinearSpec", source: "WeightSource") -> "Linear":
        """Return the layer with its weights; the outputs of the parts are concatenated."""

    @abstractmethod
    def matrix(self, linear: "LinearSpec", source: "WeightSource") -> "PackedWeight | Tensor":
        """Return the weights of one expert, a layer of one part: [out_features, in_features].

        In the dtype of `source`, or quantized if its kernels compute experts so.
        """

    def held_bytes(self, linear: "LinearSpec", dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the weights in memory; `codes` selects those that stay quantized."""
        return self.num_bytes(linear, dtype_bytes)

    def matrix_bytes(self, linear: "LinearSpec", dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of `matrix`; `codes` selects those that stay quantized."""
        return linear.num_weights * dtype_bytes

    def forms(self, linear: "LinearSpec", stored: StoredTensors) -> "tuple[CodeForm | None, ...]":
        """Return the form of each part that is quantized and has one, None for the others."""
        return (None,) * len(linear.parts)

    def has_int8_inputs(self, linear: "LinearSpec", stored: StoredTensors) -> bool:
        """Return True if inputs are rounded to int8 whatever `Activations` says."""
        return False


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer of the checkpoint, by the name before `.weight`.

    `order`: row order of the kernels; None: that of the checkpoint.
    """

    name: str
    out_features: int
    order: RowOrder | None = None


@dataclass(frozen=True, slots=True)
class LinearSpec(Part):
    """Projections of one input, computed as one product with outputs side by side.

    `method` is the format of the weights, `has_bias` holds for all of them. `keep_precision`:
    weights that are stored unquantized stay so, since small differences of the results have large
    effects.
    """

    parts: tuple[Projection, ...]
    in_features: int
    has_bias: bool
    method: LinearMethod
    keep_precision: bool = False

    @property
    def out_features(self) -> int:
        """Elements of a row of the output."""
        return sum(part.out_features for part in self.parts)

    @property
    def num_weights(self) -> int:
        """Number of values of matrices and biases, whatever their format."""
        return self.out_features * (self.in_features + self.has_bias)

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the tensors of all parts."""
        return self.method.parameters(self, stored)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the weights."""
        return self.method.num_bytes(self, dtype_bytes)

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the weights in memory where those in `codes` stay quantized."""
        return self.method.held_bytes(self, dtype_bytes, codes)

    def linears(self, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return each part as a checkpoint with the tensors `stored` holds it."""
        is_int8 = self.method.has_int8_inputs(self, stored)
        return tuple(
            StoredLinear(self.in_features, None if is_int8 else form, has_int8_inputs=is_int8)
            for form in self.method.forms(self, stored)
        )

    def load(self, source: "WeightSource") -> "Linear":
        """Return the layer with its weights."""
        return source.layer(lambda: self.method.load(self, source))

    def matrix_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of `matrix`."""
        return self.method.matrix_bytes(self, dtype_bytes, codes)

    def matrix(self, source: "WeightSource") -> "PackedWeight | Tensor":
        """Return the weights of a layer of one part, [out_features, in_features]."""
        return self.method.matrix(self, source)


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """Matrices of all experts, dense or quantized, and biases if any.

    gate, up: [intermediate_size, hidden_size]. down: [hidden_size, intermediate_size].
    gate_up_bias: [num_experts, 2 * intermediate_size], gates first. down_bias: [num_experts,
    hidden_size].
    """

    gate: "Sequence[PackedWeight | Tensor]"
    up: "Sequence[PackedWeight | Tensor]"
    down: "Sequence[PackedWeight | Tensor]"
    gate_up_bias: "Tensor | None" = None
    down_bias: "Tensor | None" = None


class ExpertLayout(ABC):
    """Layout of experts in a checkpoint; a frozen dataclass, as a `LinearMethod` is."""

    __slots__ = ()

    @abstractmethod
    def parameters(
        self, experts: "ExpertsSpec", stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the tensors of experts in a checkpoint that has the tensors `stored`."""

    @abstractmethod
    def held_bytes(self, experts: "ExpertsSpec", dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of matrices and biases; `codes` selects those that stay quantized."""

    @abstractmethod
    def linears(self, experts: "ExpertsSpec", stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return a linear layer for each projection, by that of the first expert."""

    @abstractmethod
    def load(self, experts: "ExpertsSpec", source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, views of the checkpoint's tensors if those are plain."""


@dataclass(frozen=True, slots=True)
class ExpertsSpec(Part):
    """Description of `num_experts` gated MLPs: `down(activation(gate) * up)`, biases optional.

    Tensor names begin with `name`. Checkpoints have one of `layouts`; the first is the default.
    `method` is the format of a matrix.
    """

    name: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    layouts: tuple[ExpertLayout, ...]
    method: LinearMethod
    has_bias: bool = False

    def stored_as(self, stored: StoredTensors) -> "ExpertsSpec":
        """Return the experts in the layout with the largest share of its tensors in `stored`."""

        def share(layout: ExpertLayout) -> float:
            found = [stored.get(each.name) for each in layout.parameters(self, stored)]
            return sum(each is not None for each in found) / len(found)

        return replace(self, layouts=(max(self.layouts, key=share),))

    def parameters(self, stored: StoredTensors = NO_TENSORS) -> tuple[Parameter, ...]:
        """Return the tensors of all experts."""
        return self.layouts[0].parameters(self, stored)

    def linear(self, name: str, out_features: int, in_features: int) -> LinearSpec:
        """Return a product of one expert, without a bias."""
        return LinearSpec((Projection(name, out_features),), in_features, False, self.method)

    @property
    def num_weights(self) -> int:
        """Number of values of all experts, whatever their format."""
        biases = 2 * self.intermediate_size + self.hidden_size if self.has_bias else 0
        weights = 3 * self.intermediate_size * self.hidden_size
        return self.num_experts * (weights + biases)

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all experts in a dtype of `dtype_bytes` a number."""
        return dtype_bytes * self.num_weights

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of all experts in memory where those in `codes` stay quantized."""
        return self.layouts[0].held_bytes(self, dtype_bytes, codes.of_experts)

    def linears(self, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return a linear layer for each projection of a checkpoint with the tensors `stored`."""
        return self.layouts[0].linears(self, stored)

    def load(self, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices of all experts."""
        return self.layouts[0].load(self, source)
