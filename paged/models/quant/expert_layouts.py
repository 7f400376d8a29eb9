"""Layouts of MoE experts in checkpoints; each is an `ExpertLayout`.

`PerExpert`: tensors for each expert and projection. `Stacked`: all experts in one tensor for gate
and up projections, and one for down projections. `StackedProjections`: one tensor per projection
(GGUF). `Interleaved`: stacked and transposed, gate and up rows alternating (gpt-oss). `Mxfp4`: the
same in MXFP4. Experts may be stored in any format of the linear method; plain tensors stay
memory-mapped where the device allows it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import CodeForm
from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    HeldCodes,
    Parameter,
    Role,
    StoredLinear,
    StoredTensor,
    StoredTensors,
)
from pagedrun.paged.models.modules.linear import (
    ExpertLayout,
    ExpertMatrices,
    ExpertsSpec,
    LinearSpec,
)
from pagedrun.paged.models.quant.fp4 import (
    e2m1,
    packed_floats,
    powers_of_two,
    require_whole_groups,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class PerExpert(ExpertLayout):
    """Linear layers `{experts}.{number}.{projection}`; the fields are names of projections."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the tensors of three matrices for each expert."""
        linears = (
            linear
            for name in (self.gate, self.up, self.down)
            for linear in self._linears(experts, name)
        )
        return tuple(each for linear in linears for each in linear.parameters(stored))

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the matrices."""
        return sum(
            linear.matrix_bytes(dtype_bytes, codes)
            for name in (self.gate, self.up, self.down)
            for linear in self._linears(experts, name)
        )

    def linears(self, experts: ExpertsSpec, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the projections of the first expert."""
        names = (self.gate, self.up, self.down)
        return tuple(_of_experts(self._linears(experts, name)[0], stored) for name in names)

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, memory-mapped if plain."""
        gate, up, down = (
            [linear.matrix(source) for linear in self._linears(experts, name)]
            for name in (self.gate, self.up, self.down)
        )
        return ExpertMatrices(gate, up, down)

    def _linears(self, experts: ExpertsSpec, projection: str) -> list[LinearSpec]:
        sizes = experts.intermediate_size, experts.hidden_size
        if projection == self.down:
            sizes = experts.hidden_size, experts.intermediate_size
        return [
            experts.linear(f"{experts.name}.{number}.{projection}", *sizes)
            for number in range(experts.num_experts)
        ]


def _of_experts(linear: LinearSpec, stored: StoredTensors) -> StoredLinear:
    """Return a projection of experts, described by that of one."""
    [form] = linear.method.forms(linear, stored)
    return StoredLinear(linear.in_features, form, is_of_experts=True)


@dataclass(frozen=True, slots=True)
class StackedLinear:
    """One projection of all experts; `linear` is that of one expert.

    Each tensor has `num_experts` as its first axis, and a name without `weight`: `down_proj` and
    `down_proj_scale_inv`.
    """

    linear: LinearSpec
    num_experts: int

    def parameters(self, stored: StoredTensors) -> tuple[Parameter, ...]:
        """Return the tensors of a checkpoint with the tensors `stored`."""
        return tuple(
            replace(each, name=_stacked_name(each.name), shape=(self.num_experts, *each.shape))
            for each in self.linear.parameters(_OfOneExpert(stored))
        )

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of `matrices`."""
        of_one = replace(codes, stored=_OfOneExpert(codes.stored))
        return self.num_experts * self.linear.matrix_bytes(dtype_bytes, of_one)

    def stored_linear(self, stored: StoredTensors) -> StoredLinear:
        """Return the projection in a checkpoint with the tensors `stored`."""
        return _of_experts(self.linear, _OfOneExpert(stored))

    def matrices(self, source: "WeightSource") -> "list[PackedWeight | Tensor]":
        """Return the matrix of each expert, views of one tensor if that is plain."""
        whole = cache(source.read)
        stored = _OfOneExpert(source.stored)

        def matrix(expert: int) -> "PackedWeight | Tensor":
            own = source.reading(lambda name: whole(_stacked_name(name))[expert], stored)
            found = self.linear.matrix(own)
            source.mapped_bytes += own.mapped_bytes
            return found

        return [matrix(expert) for expert in range(self.num_experts)]


@dataclass(frozen=True, slots=True)
class _OfOneExpert:
    """Tensors of one expert, slices of stacked ones; implements `StoredTensors`."""

    stored: StoredTensors

    def get(self, name: str) -> StoredTensor | None:
        found = self.stored.get(_stacked_name(name))
        return None if found is None else replace(found, shape=found.shape[1:])


def _stacked_name(name: str) -> str:
    """Return the name of the stacked tensor for one expert's tensor `name`."""
    layer, _, end = name.rpartition(".")
    end = end.removeprefix("weight").removeprefix("_")
    return f"{layer}_{end}" if end else layer


class _StackedLayout(ExpertLayout):
    __slots__ = ()

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the tensors of all stacks."""
        return tuple(each for stack in self._stacks(experts) for each in stack.parameters(stored))

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of all stacks."""
        return sum(each.held_bytes(dtype_bytes, codes) for each in self._stacks(experts))

    def linears(self, experts: ExpertsSpec, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the projection of each stack."""
        return tuple(each.stored_linear(stored) for each in self._stacks(experts))

    @abstractmethod
    def _stacks(self, experts: ExpertsSpec) -> tuple[StackedLinear, ...]: ...


@dataclass(frozen=True, slots=True)
class Stacked(_StackedLayout):
    """`{experts}.{gate_up}` [num_experts, 2 * intermediate_size, hidden_size], gate rows before
    up rows, and `{experts}.{down}` [num_experts, hidden_size, intermediate_size], if plain.
    """

    gate_up: str = "gate_up_proj"
    down: str = "down_proj"

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return views of the two tensors, or of their dequantized copies."""
        gate_up, down = (stack.matrices(source) for stack in self._stacks(experts))
        inner = experts.intermediate_size
        return ExpertMatrices(
            [sliced_rows(each, 0, inner) for each in gate_up],
            [sliced_rows(each, inner, 2 * inner) for each in gate_up],
            down,
        )

    def _stacks(self, experts: ExpertsSpec) -> tuple[StackedLinear, StackedLinear]:
        hidden, inner = experts.hidden_size, experts.intermediate_size
        return (
            _stack(experts, self.gate_up, 2 * inner, hidden),
            _stack(experts, self.down, hidden, inner),
        )


@dataclass(frozen=True, slots=True)
class StackedProjections(_StackedLayout):
    """`{experts}.gate_proj` and `up_proj` [num_experts, intermediate_size, hidden_size], and
    `{experts}.down_proj` [num_experts, hidden_size, intermediate_size]; used in GGUF files.
    """

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, views of the tensors if those are plain."""
        gate, up, down = (stack.matrices(source) for stack in self._stacks(experts))
        return ExpertMatrices(gate, up, down)

    def _stacks(self, experts: ExpertsSpec) -> tuple[StackedLinear, StackedLinear, StackedLinear]:
        hidden, inner = experts.hidden_size, experts.intermediate_size
        return (
            _stack(experts, "gate_proj", inner, hidden),
            _stack(experts, "up_proj", inner, hidden),
            _stack(experts, "down_proj", hidden, inner),
        )


def _stack(
    experts: ExpertsSpec, projection: str, out_features: int, in_features: int
) -> StackedLinear:
    linear = experts.linear(f"{experts.name}.{projection}", out_features, in_features)
    return StackedLinear(linear, experts.num_experts)


@dataclass(frozen=True, slots=True)
class Interleaved(ExpertLayout):
    """`{experts}.gate_up_proj` [num_experts, hidden_size, 2 * intermediate_size], gate and up
    columns alternating, and `{experts}.down_proj` [num_experts, intermediate_size, hidden_size].

    Biases: see `interleaved_biases`.
    """

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return the two tensors and their biases."""
        return *self._matrices(experts), *interleaved_biases(experts)

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of the plain matrices."""
        return experts.num_bytes(dtype_bytes)

    def linears(self, experts: ExpertsSpec, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the two plain projections."""
        sizes = experts.hidden_size, experts.intermediate_size
        return tuple(StoredLinear(size, is_of_experts=True) for size in sizes)

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the transposed matrices."""
        gate_up, down = (source.tensor(each).mT for each in self._matrices(experts))
        return split_interleaved(experts, source, list(gate_up), list(down))

    def _matrices(self, experts: ExpertsSpec) -> tuple[Parameter, Parameter]:
        number, hidden = experts.num_experts, experts.hidden_size
        inner = experts.intermediate_size
        return (
            Parameter(f"{experts.name}.gate_up_proj", (number, hidden, 2 * inner), Role.MATRIX),
            Parameter(f"{experts.name}.down_proj", (number, inner, hidden), Role.MATRIX),
        )


GROUP = 32  # weights that share a scale
_MXFP4_FORM = CodeForm(4, GROUP, 1, is_float=True)


@dataclass(frozen=True, slots=True)
class Mxfp4(ExpertLayout):
    """`{experts}.gate_up_proj_blocks` [num_experts, 2 * intermediate_size, hidden_size / 32, 16],
    bytes of two codes, the first in the low half; and `.._scales`, the same without the last axis:
    2^(scale - 127) multiplies a group. `down_proj` likewise. Biases: see `interleaved_biases`.

    Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3 and 6.
    """

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NO_TENSORS
    ) -> tuple[Parameter, ...]:
        """Return codes, scales and biases of both matrices."""
        gate_up, down = self._matrices(experts)
        return *gate_up, *down, *interleaved_biases(experts)

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, quantized if the kernels allow, else dequantized one by one.

        Raises `ModelError` for sizes that are no multiples of 32, and for values that are not
        finite.
        """
        sizes = experts.hidden_size, experts.intermediate_size
        for size in sizes:
            require_whole_groups(f"{experts.name}: MXFP4 has", GROUP, size)
        kernels = source.code_kernels.of_experts
        is_held = all(kernels.hold(_MXFP4_FORM, each, source.dtype_name) for each in sizes)
        gate_up, down = (
            list(_mxfp4_matrices(*each, source, is_held=is_held))
            for each in self._matrices(experts)
        )
        return split_interleaved(experts, source, gate_up, down)

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of codes and scales, and of biases in the model's dtype."""
        hidden, inner = experts.hidden_size, experts.intermediate_size
        if not (codes.hold(_MXFP4_FORM, hidden) and codes.hold(_MXFP4_FORM, inner)):
            return experts.num_bytes(dtype_bytes)
        interleaved_biases = dtype_bytes * (2 * inner + hidden)
        matrices = _MXFP4_FORM.num_bytes(2 * inner, hidden) + _MXFP4_FORM.num_bytes(hidden, inner)
        return experts.num_experts * (matrices + interleaved_biases)

    def linears(self, experts: ExpertsSpec, stored: StoredTensors) -> tuple[StoredLinear, ...]:
        """Return the two projections."""
        sizes = experts.hidden_size, experts.intermediate_size
        return tuple(StoredLinear(size, _MXFP4_FORM, is_of_experts=True) for size in sizes)

    def _matrices(self, experts: ExpertsSpec) -> tuple[tuple[Parameter, Parameter], ...]:
        hidden, inner = experts.hidden_size, experts.intermediate_size

        def stored(name: str, rows: int, columns: int) -> tuple[Parameter, Parameter]:
            groups = (experts.num_experts, rows, -(-columns // GROUP))
            prefix, role = f"{experts.name}.{name}", Role.QUANTIZED
            blocks = Parameter(f"{prefix}_blocks", (*groups, GROUP // 2), role, dtypes=("U8",))
            return blocks, Parameter(f"{prefix}_scales", groups, role, dtypes=("U8",))

        return stored("gate_up_proj", 2 * inner, hidden), stored("down_proj", hidden, inner)


def _mxfp4_matrices(
    blocks: Parameter, scales: Parameter, source: "WeightSource", *, is_held: bool
) -> "Iterator[PackedWeight | Tensor]":
    """Yield the matrix of each expert: 4-bit if `is_held`, else dequantized, exact in bfloat16."""
    for pairs, exponents in zip(source.read(blocks.name), source.read(scales.name), strict=True):
        codes = pairs.flatten(1)
        if is_held:
            yield source.packed(blocks.name, packed_floats(codes, exponents, GROUP, source))
        else:
            factors = powers_of_two(exponents)
            yield source.dequantize_table(blocks.name, codes, e2m1(), factors)


def interleaved_biases(experts: ExpertsSpec) -> tuple[Parameter, Parameter]:
    """Return `{experts}.gate_up_proj_bias` [num_experts, 2 * intermediate_size], alternating too,
    and `{experts}.down_proj_bias` [num_experts, hidden_size].
    """
    number = experts.num_experts
    return (
        Parameter(
            f"{experts.name}.gate_up_proj_bias",
            (number, 2 * experts.intermediate_size),
            Role.BIAS,
        ),
        Parameter(f"{experts.name}.down_proj_bias", (number, experts.hidden_size), Role.BIAS),
    )


def split_interleaved(
    experts: ExpertsSpec,
    source: "WeightSource",
    gate_up: "Sequence[PackedWeight | Tensor]",
    down: "Sequence[PackedWeight | Tensor]",
) -> ExpertMatrices:
    """Return separate gate and up matrices, with the biases of `source`.

    gate_up: [2 * intermediate_size, hidden_size] per expert. down: as in `ExpertMatrices`.
    """
    num_rows = 2 * experts.intermediate_size
    gate_up_bias, down_bias = (source.tensor(each) for each in interleaved_biases(experts))
    return ExpertMatrices(
        [sliced_rows(each, 0, num_rows, 2) for each in gate_up],
        [sliced_rows(each, 1, num_rows, 2) for each in gate_up],
        down,
        source.joined([gate_up_bias.T[0::2], gate_up_bias.T[1::2]]).T,
        down_bias,
    )


def sliced_rows(
    matrix: "PackedWeight | Tensor", start: int, end: int, step: int = 1
) -> "PackedWeight | Tensor":
    """Return every `step`-th row from start to end, a view if the matrix is plain."""
    from torch import Tensor

    if isinstance(matrix, Tensor):
        return matrix[start:end:step]
    return matrix.between(start, end, step)
