"""Linear methods: plain weights, and quantized weights in any storage format.

`Dense` reads plain matrices. `QuantizedWeights` reads quantized ones: a `WeightFormat` has the
tensors of one storage format and their meaning. If the backend has kernels for its codes, weights
stay quantized in memory; otherwise they are dequantized to the model's dtype at load. Both give
the same products up to rounding, unless kernels round the inputs (`Activations`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import CodeForm, CodeKernels
from pagedrun.paged.models.checkpoint.tensors import (
    FLOATS,
    NO_TENSORS,
    HeldCodes,
    Parameter,
    Role,
    StoredTensors,
)
from pagedrun.paged.models.modules.linear import LinearMethod, LinearSpec, Projection
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.ops import Linear
    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource


def parameter(part: Projection, end: str, shape: tuple[int, ...], *dtypes: str) -> Parameter:
    """Return the tensor `end` of a quantized projection; default of `dtypes`: floats."""
    return Parameter(f"{part.name}.{end}", shape, Role.QUANTIZED, dtypes=dtypes or FLOATS)


class WeightFormat(ABC):
    """Storage format of quantized matrices: names, shapes and meaning of their tensors.

    Subclasses are frozen dataclasses, compared by value; importing them imports no torch. One
    without kernels for its codes returns None from `form` and overrides `weight`.
    """

    __slots__ = ()

    @abstractmethod
    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return the tensors that hold a projection's matrix, None if it is stored otherwise."""

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm | None:
        """Return the form of `packed`; None if no kernel computes with such codes."""
        return None

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales on the device of `source`.

        Raises `ModelError` for tensors that contradict each other.
        """
        raise NotImplementedError

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the dequantized matrix [out_features, in_features] in the dtype of `source`.

        Raises `ModelError` for tensors that contradict each other or hold no finite numbers.
        """
        return source.unpacked(part.name, self.packed(part, in_features, source))


@dataclass(frozen=True, slots=True)
class Dense(LinearMethod):
    """Plain matrices: [out_features, in_features] and a bias [out_features], if any, per part.

    The parts are stacked into one matrix, which the backend packs.
    """

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the matrix and the bias of each part."""
        return *self.weights(linear), *self.biases(linear)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        """Return the bytes of matrices and biases in the model's dtype."""
        return dtype_bytes * sum(each.num_weights for each in self.parameters(linear))

    def load(self, linear: LinearSpec, source: "WeightSource") -> "Linear":
        """Return the parts as one product of the backend."""
        weight = source.stacked(self.weights(linear))
        bias = source.stacked(self.biases(linear)) if linear.has_bias else None
        return source.pack(weight, bias)

    def matrix(self, linear: LinearSpec, source: "WeightSource") -> "Tensor":
        """Return the matrix of a layer of one part, memory-mapped where possible."""
        [matrix] = self.weights(linear)
        return source.kept(matrix)

    def weights(self, linear: LinearSpec) -> list[Parameter]:
        """Return the matrix of each part."""

        def matrix(part: Projection) -> Parameter:
            shape = (part.out_features, linear.in_features)
            return Parameter(f"{part.name}.weight", shape, Role.MATRIX, part.order)

        return [matrix(part) for part in linear.parts]

    def biases(self, linear: LinearSpec) -> list[Parameter]:
        """Return the bias of each part, empty for a layer without biases."""
        if not linear.has_bias:
            return []
        return [
            Parameter(f"{part.name}.bias", (part.out_features,), Role.BIAS, part.order)
            for part in linear.parts
        ]


_DENSE = Dense()
# Scales of activations, which are not quantized here.
_ACTIVATION_SCALES = (
    *("input_scale", "input_scale_ub", "input_global_scale", "activation_scale"),
    "output_scale",
)


@dataclass(frozen=True, slots=True)
class QuantizedWeights(LinearMethod):
    """Weights in any of `formats`, or plain; products are those of the dequantized weights.

    The format of each projection is recognized by its tensors; the list of unquantized modules in
    config.json is ignored.
    """

    formats: tuple[WeightFormat, ...]

    def parameters(
        self, linear: LinearSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the tensors of each part in its format, and its bias."""
        found = list(_DENSE.biases(linear))
        for part, plain in zip(linear.parts, _DENSE.weights(linear), strict=True):
            packed = self._packed(part, linear, stored)
            found += [plain] if packed is None else packed[1]
            if packed is not None:
                found += _superfluous(part, linear, stored)
        return tuple(found)

    def num_bytes(self, linear: LinearSpec, dtype_bytes: int) -> int:
        """Return the bytes of matrices and biases in the model's dtype."""
        return _DENSE.num_bytes(linear, dtype_bytes)

    def held_bytes(self, linear: LinearSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of matrices, quantized where kernels allow, and biases."""
        size = linear.in_features
        held = linear.out_features * dtype_bytes if linear.has_bias else 0
        for part in linear.parts:
            found = self._packed(part, linear, codes)
            form = None if found is None else found[0].form(part, codes)
            if form is None or not codes.hold(form, size):
                held += part.out_features * size * dtype_bytes
            else:
                held += form.num_bytes(part.out_features, size)
        return held

    matrix_bytes = held_bytes

    def forms(self, linear: LinearSpec, stored: StoredTensors) -> tuple[CodeForm | None, ...]:
        """Return the form of each part, None for a plain one and one without kernels."""
        found = [(part, self._packed(part, linear, stored)) for part in linear.parts]
        return tuple(
            None if packed is None else packed[0].form(part, stored) for part, packed in found
        )

    def load(self, linear: LinearSpec, source: "WeightSource") -> "Linear":
        """Return the parts as one layer."""
        weights = [
            self._weight(part, plain, linear, source)
            for part, plain in zip(linear.parts, _DENSE.weights(linear), strict=True)
        ]
        bias = source.stacked(_DENSE.biases(linear)) if linear.has_bias else None
        return source.pack_parts(weights, bias)

    def matrix(self, linear: LinearSpec, source: "WeightSource") -> "PackedWeight | Tensor":
        """Return the matrix of a layer of one part; a plain one is memory-mapped if possible."""
        [part] = linear.parts
        found = self._packed(part, linear, source.stored)
        if found is None:
            return _DENSE.matrix(linear, source)
        return self._of_format(found[0], part, linear, source, source.code_kernels.of_experts)

    def _weight(
        self, part: Projection, plain: Parameter, linear: LinearSpec, source: "WeightSource"
    ) -> "PackedWeight | Tensor":
        found = self._packed(part, linear, source.stored)
        if found is None:
            return source.tensor(plain)
        return self._of_format(found[0], part, linear, source, source.code_kernels)

    def _of_format(
        self,
        found: WeightFormat,
        part: Projection,
        linear: LinearSpec,
        source: "WeightSource",
        kernels: CodeKernels,
    ) -> "PackedWeight | Tensor":
        """Return the matrix of a part, quantized if `kernels` compute with its form."""
        check_stray_bias(part, linear, source)
        size = linear.in_features
        form = found.form(part, source.stored)
        if form is not None:
            form = replace(form, is_scattered=False)  # stored groups may be contiguous after all
            if kernels.hold(form, size, source.dtype_name):
                weight = source.ordered_rows(found.packed(part, size, source), part.order)
                return source.packed(part.name, weight)
        return source.ordered(found.weight(part, size, source), part.order)

    def _packed(
        self, part: Projection, linear: LinearSpec, stored: StoredTensors
    ) -> tuple[WeightFormat, tuple[Parameter, ...]] | None:
        """Return the format of a part with its tensors, None for a plain matrix.

        Of several candidates, such as 4 and 8 bits, the first that all tensors fit, else the first.
        """
        found = [
            (each, parameters)
            for each in self.formats
            if (parameters := each.parameters(part, linear.in_features, stored)) is not None
        ]
        fitting = (each for each in found if all(_fits(one, stored) for one in each[1]))
        return next(fitting, found[0] if found else None)


def check_stray_bias(part: Projection, linear: LinearSpec, source: "WeightSource") -> None:
    """Raise `ModelError` if a layer without a bias has a nonzero one in the checkpoint."""
    bias = _stray_bias(part, linear, source.stored)
    if bias is not None and source.tensor(bias).any():
        raise ModelError(
            f"{bias.name} is not zero, but config.json declares no such bias; use another "
            "version of the model"
        )


def _fits(parameter: Parameter, stored: StoredTensors) -> bool:
    tensor = stored.get(parameter.name)
    return tensor is not None and tensor.shape == parameter.shape


def _superfluous(part: Projection, linear: LinearSpec, stored: StoredTensors) -> list[Parameter]:
    """Return the optional tensors of a quantized part: scales of activations, a stray bias."""
    bias = _stray_bias(part, linear, stored)
    found = [] if bias is None else [bias]
    for name in (f"{part.name}.{each}" for each in _ACTIVATION_SCALES):
        tensor = stored.get(name)
        if tensor is not None:
            found.append(Parameter(name, tensor.shape, Role.QUANTIZED))
    return found


def _stray_bias(part: Projection, linear: LinearSpec, stored: StoredTensors) -> Parameter | None:
    """Return the stored bias of a layer without one: some programs write zeros."""
    name = f"{part.name}.bias"
    if linear.has_bias or stored.get(name) is None:
        return None
    return Parameter(name, (part.out_features,), Role.BIAS)
