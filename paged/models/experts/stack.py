"""Stack: a matrix of each expert, all of them in one tensor."""

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from pagedrun.paged.models.network.checkpoint.held_codes import HeldCodes
from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensor, StoredTensors
from pagedrun.paged.models.network.linear_spec import LinearSpec

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Stack:
    """`linear` is one expert's product. Each tensor of its weights has `num_experts` as its first
    axis, and a name without `weight`: `down_proj` and `down_proj_scale_inv`.
    """

    linear: LinearSpec
    num_experts: int

    def parameters(self, stored: StoredTensors) -> tuple[Parameter, ...]:
        """Return the tensors of a checkpoint with the tensors `stored`."""
        return tuple(
            replace(each, name=_name(each.name), shape=(self.num_experts, *each.shape))
            for each in self.linear.parameters(_OfOne(stored))
        )

    def held_bytes(self, dtype_bytes: int, codes: HeldCodes) -> int:
        """Return the bytes of what `matrices` returns."""
        of_one = replace(codes, stored=_OfOne(codes.stored))
        return self.num_experts * self.linear.matrix_bytes(dtype_bytes, of_one)

    def matrices(self, source: "WeightSource") -> "list[PackedWeight | Tensor]":
        """Return each expert's matrix, views of one tensor where that is plain."""
        whole = cache(source.read)
        stored = _OfOne(source.stored)

        def matrix(expert: int) -> "PackedWeight | Tensor":
            own = source.reading(lambda name: whole(_name(name))[expert], stored)
            found = self.linear.matrix(own)
            source.mapped_bytes += own.mapped_bytes
            return found

        return [matrix(expert) for expert in range(self.num_experts)]


@dataclass(frozen=True, slots=True)
class _OfOne:
    """Implements `StoredTensors`: what one expert has of tensors of all."""

    stored: StoredTensors

    def get(self, name: str) -> StoredTensor | None:
        found = self.stored.get(_name(name))
        return None if found is None else replace(found, shape=found.shape[1:])


def _name(name: str) -> str:
    """Return the name of all experts' tensor where one expert's would have `name`."""
    layer, _, end = name.rpartition(".")
    end = end.removeprefix("weight").removeprefix("_")
    return f"{layer}_{end}" if end else layer
