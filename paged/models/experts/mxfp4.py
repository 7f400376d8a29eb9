"""Mxfp4: all experts in four bits a weight, with a power of two for each 32 of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.code_form import CodeForm
from pagedrun.paged.models.experts.paired_rows import biases, taken_apart
from pagedrun.paged.models.linears.four_bit_floats import e2m1, packed_floats, powers_of_two
from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertMatrices, ExpertsSpec
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource

GROUP = 32  # weights that have one scale
_GROUP_BYTES = GROUP // 2
_BYTES = ("U8",)
_FORM = CodeForm(4, GROUP, 1, is_float=True)


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """`{experts}.gate_up_proj_blocks` [num_experts, 2 * intermediate_size, hidden_size / 32, 16],
    bytes of two codes, the first in the low half; and `.._scales`, the same without the last axis:
    2^(scale - 127) multiplies a group. `down_proj` likewise. Biases are those of `paired_rows`.

    Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3 and 6.
    """

    def parameters(
        self, experts: ExpertsSpec, stored: StoredTensors = NOTHING_STORED
    ) -> tuple[Parameter, ...]:
        """Return codes and scales of the two, and their biases."""
        gate_up, down = self._matrices(experts)
        return *gate_up, *down, *biases(experts)

    def load(self, experts: ExpertsSpec, source: "WeightSource") -> ExpertMatrices:
        """Return the matrices, multiplied out expert by expert.

        Raises `ModelError` for sizes that are no multiples of 32, and for no finite numbers.
        """
        for size in (experts.hidden_size, experts.intermediate_size):
            if size % GROUP:
                raise ModelError(
                    f"{experts.name}: MXFP4 has groups of {GROUP} weights, and {size} weights are "
                    "not a whole number of groups; use another version of the model"
                )
        read = _packed if self._are_held(experts, source) else _unpacked
        gate_up, down = (list(read(*each, source)) for each in self._matrices(experts))
        return taken_apart(experts, source, gate_up, down)

    def held_bytes(self, experts: ExpertsSpec, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of codes and scales, and of biases in the model's dtype."""
        hidden, inner = experts.hidden_size, experts.intermediate_size
        if not (codes.hold(_FORM, hidden) and codes.hold(_FORM, inner)):
            return experts.num_bytes(dtype_bytes)
        biases = dtype_bytes * (2 * inner + hidden)
        matrices = _FORM.num_bytes(2 * inner, hidden) + _FORM.num_bytes(hidden, inner)
        return experts.num_experts * (matrices + biases)

    def _are_held(self, experts: ExpertsSpec, source: "WeightSource") -> bool:
        kernels, sizes = (
            source.code_kernels.of_experts,
            (experts.hidden_size, experts.intermediate_size),
        )
        return all(kernels.hold(_FORM, each, source.dtype_name) for each in sizes)

    def _matrices(self, experts: ExpertsSpec) -> tuple[tuple[Parameter, Parameter], ...]:
        hidden, inner = experts.hidden_size, experts.intermediate_size

        def stored(name: str, rows: int, columns: int) -> tuple[Parameter, Parameter]:
            groups = (experts.num_experts, rows, -(-columns // GROUP))
            return (
                Parameter(
                    f"{experts.name}.{name}_blocks",
                    (*groups, _GROUP_BYTES),
                    Role.QUANTIZED,
                    dtypes=_BYTES,
                ),
                Parameter(f"{experts.name}.{name}_scales", groups, Role.QUANTIZED, dtypes=_BYTES),
            )

        return stored("gate_up_proj", 2 * inner, hidden), stored("down_proj", hidden, inner)


def _packed(
    blocks: Parameter, scales: Parameter, source: "WeightSource"
) -> "Iterator[PackedWeight | Tensor]":
    """Yield each expert's matrix in four bits."""
    for pairs, exponents in zip(source.read(blocks.name), source.read(scales.name), strict=True):
        weight = packed_floats(pairs.flatten(1), exponents, GROUP, source)
        yield source.packed(blocks.name, weight)


def _unpacked(blocks: Parameter, scales: Parameter, source: "WeightSource") -> "Iterator[Tensor]":
    """Yield each expert's matrix. A product of a code and a power of two is exact in bfloat16."""
    for pairs, exponents in zip(source.read(blocks.name), source.read(scales.name), strict=True):
        yield source.looked_up(blocks.name, pairs.flatten(1), e2m1(), powers_of_two(exponents))
