"""WeightSource: weights of layers, cast, reordered, dequantized and packed for a backend.

Layers and linear methods get tensors from here and nowhere else. Weights that are not finite are
refused while they are read. Quantized weights stay quantized where the backend has kernels for
them; parts of one product that are held in different ways become `SideBySide` products.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend, GroupedLinear, Linear
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.kernels.quantized_weight import PackedWeight, all_alike, dtype_name, joined_neighbors
from pagedrun.paged.files.gguf import PACKED_TYPES
from pagedrun.paged.models.checkpoint.tensors import (
    NO_TENSORS,
    Parameter,
    RowOrder,
    StoredTensors,
)
from pagedrun.paged.models.streaming.residency import StreamedWeights
from pagedrun.paged.values.errors import ModelError

T = TypeVar("T")
ReadTensor = Callable[[str], Tensor]
MakePart = Callable[["WeightSource"], Any]  # a layer of a model, or its head
PackLayer = Callable[[Callable[[], Any]], Any]  # gets a function that packs
UseExperts = Callable[[Tensor], None]  # gets `ExpertRows.starts`, before the experts compute


class WeightSource:
    """A checkpoint's tensors by name, cast to `dtype` on `device`, for layers run by `kernels`.

    `read` returns a tensor as it is stored. `row_invariant`: rows of products have the same bytes
    whatever their number. `is_mapped`: tensors are read from mapped files; `mapped_bytes` are the
    bytes of those in use there. `stored`: header of a checkpoint that may be quantized. `streamed`:
    weights that are not all in memory, once they are loaded. `is_streamed`: there will be some.
    """

    is_streamed = False

    def __init__(
        self,
        read: ReadTensor,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Backend,
        *,
        row_invariant: bool = False,
        is_mapped: bool = False,
        stored: StoredTensors = NO_TENSORS,
    ) -> None:
        self.read = read
        self.dtype = dtype
        self.device = device
        self.kernels = kernels
        self.row_invariant = row_invariant
        self.is_mapped = is_mapped
        self.mapped_bytes = 0
        self.stored = stored
        self.streamed: StreamedWeights | None = None
        self._pack_layer: PackLayer | None = None
        self._expert_use: Callable[[int], UseExperts] | None = None

    def reading(self, read: ReadTensor, stored: StoredTensors) -> "WeightSource":
        """Return a source of other tensors for the same device and kernels."""
        return WeightSource(
            read,
            self.dtype,
            self.device,
            self.kernels,
            row_invariant=self.row_invariant,
            is_mapped=self.is_mapped,
            stored=stored,
        )

    def packed_by(
        self,
        pack: PackLayer,
        read: ReadTensor,
        expert_use: Callable[[int], UseExperts] | None = None,
    ) -> "WeightSource":
        """Return a source with the tensors of `read`, whose packed layers come from `pack`.

        expert_use: see the method.
        """
        source = copy(self)
        source._pack_layer, source.read, source._expert_use = pack, read, expert_use
        return source

    def expert_use(self, num_chosen: int) -> UseExperts | None:
        """Return a function to call before experts compute, None if all are in memory.

        num_chosen: experts of a token.
        """
        return None if self._expert_use is None else self._expert_use(num_chosen)

    def layer(self, make: Callable[[], T]) -> T:
        """Return one or several packed layers: those that `make` reads and packs, or the same from
        elsewhere."""
        if self._pack_layer is None:
            return make()
        packed: T = self._pack_layer(make)
        return packed

    def parts(self, makers: Sequence[tuple[str, MakePart]]) -> list[Any]:
        """Return the parts of a model, in the order of a pass, each with a name."""
        return [make(self) for _, make in makers]

    def tensor(self, parameter: Parameter) -> Tensor:
        """Return a tensor on the device, in the model's dtype or float32 as the parameter says."""
        tensor = self.read(parameter.name).to(self.device)
        dtype = torch.float32 if parameter.in_float32 else self.dtype
        stored = self.stored.get(parameter.name)
        if stored is not None and stored.dtype in PACKED_TYPES:
            blocks = self.kernels.split_blocks(tensor, stored.dtype)
            tensor = self.unpacked(parameter.name, blocks, dtype)
        return self.ordered(tensor.to(dtype), parameter.order)

    def ordered(self, tensor: Tensor, order: RowOrder | None) -> Tensor:
        """Return a tensor with its first axis in the order of the kernels."""
        if order is None:
            return tensor
        return tensor[torch.tensor(order.rows(len(tensor)), device=self.device)]

    def ordered_rows(self, weight: PackedWeight, order: RowOrder | None) -> PackedWeight:
        """Return a weight with its rows in the order of the kernels."""
        if order is None:
            return weight
        return weight.rows(torch.tensor(order.rows(weight.out_features), device=self.device))

    def of_dtype(self, dtype: torch.dtype) -> "WeightSource":
        """Return the same tensors, for layers that compute in `dtype`; itself if it is its own."""
        if dtype == self.dtype:
            return self
        return WeightSource(
            self.read,
            dtype,
            self.device,
            self.kernels,
            row_invariant=self.row_invariant,
            stored=self.stored,
        )

    def kept(self, parameter: Parameter) -> Tensor:
        """Return a tensor as `tensor` does, for use without packing.

        Without a cast or a copy to a device it remains in the mapped file.
        """
        return self._kept(self.read(parameter.name), self.dtype)

    def mapped_as_stored(self, stored: Tensor) -> Tensor:
        """Return a tensor on the device in its stored dtype, mapped if possible as in `kept`."""
        return self._kept(stored, stored.dtype)

    def _kept(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        tensor = stored.to(device=self.device, dtype=dtype)
        if self.is_mapped and tensor is stored:
            self.mapped_bytes += tensor.nbytes
        return tensor

    def stacked(self, parameters: Sequence[Parameter]) -> Tensor:
        """Return several tensors as one, one after the other along their first axis."""
        return self.joined([self.tensor(each) for each in parameters])

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors one after the other along their first axis."""
        return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]

    def unpacked(self, name: str, weight: PackedWeight, dtype: torch.dtype | None = None) -> Tensor:
        """Return the matrix of a tensor or projection called `name` in `dtype`, None: the model's.

        Raises `ModelError` for a group without scales, and for weights that are not finite.
        """
        if weight.group_of is not None:
            lowest, highest = weight.group_of.aminmax()
            if lowest < 0 or highest >= weight.scales.values.shape[1]:
                raise ModelError(
                    f"{name}: its columns belong to groups without scales; download the model again"
                )
        matrix = self.kernels.dequantize(weight, dtype or self.dtype)
        _require_finite(name, matrix)
        return matrix

    def dequantize_table(self, name: str, pairs: Tensor, table: Tensor, scales: Tensor) -> Tensor:
        """Return the weights of a projection called `name`, `table[code] * scale`.

        pairs: [num_rows, num_bytes] uint8, of each byte the low half is the first code. table:
        [16]. scales: [num_rows, num_groups], each for as many neighbours. Returns [num_rows, 2 *
        num_bytes]. Raises `ModelError` for weights that are not finite.
        """
        table, scales = (each.to(self.device, torch.float32) for each in (table, scales))
        weight = self.kernels.unpack_pairs(pairs.to(self.device), table, scales, self.dtype)
        _require_finite(name, weight)
        return weight

    def scales(self, name: str, stored: Tensor) -> Tensor:
        """Return the scales of a matrix called `name` in float32, on the device.

        Raises `ModelError` for scales that are not finite.
        """
        scales = stored.to(self.device, torch.float32)
        _require_finite(name, scales)
        return scales

    def quantized(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return int8 codes of a matrix called `name`, and a scale for each of its rows.

        Raises `ModelError` for weights that are not finite.
        """
        codes, scales = self.kernels.quantize_rows(weight)
        _require_finite(name, scales)
        return codes, scales

    def packed(self, name: str, weight: PackedWeight) -> PackedWeight | Tensor:
        """Return a matrix for `pack_parts`, dequantized if no kernel computes with its form.

        Raises `ModelError` as `unpacked` does.
        """
        weight = weight.in_blocks()
        if not weight.is_moderate(self.dtype) or not self.packs(weight):
            return self.unpacked(name, weight)
        return weight

    def require_finite(self, name: str, weight: PackedWeight) -> None:
        """Raise `ModelError` unless all numbers of a weight are finite and far from the largest."""
        if not weight.is_moderate(self.dtype):
            raise _not_finite(name)

    def packs(self, weight: PackedWeight) -> bool:
        """Return True if the backend keeps such a weight quantized."""
        return weight.can_be_held(self.code_kernels, self.dtype)

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, such as "bfloat16"."""
        return dtype_name(self.dtype)

    @property
    def code_kernels(self) -> CodeKernels:
        """Kernels of the backend for quantized linear layers."""
        return self.kernels.code_kernels

    def pack_parts(self, parts: Sequence[PackedWeight | Tensor], bias: Tensor | None) -> Linear:
        """Return `y = x @ weight.T + bias` with the outputs of the parts concatenated.

        Neighbors in the same format are one matrix. bias: of all parts, or None.
        """
        linears, start = [], 0
        for weight in _joined(parts):
            num_rows = len(weight) if isinstance(weight, Tensor) else weight.out_features
            own = None if bias is None else bias[start : start + num_rows]
            start += num_rows
            if isinstance(weight, Tensor):
                linears.append(self.pack(weight, own))
            else:
                linears.append(
                    self.kernels.pack_quantized(
                        weight, self.dtype, own, row_invariant=self.row_invariant
                    )
                )
        return linears[0] if len(linears) == 1 else SideBySide(linears)

    def pack_experts(
        self, parts: Sequence[Sequence[PackedWeight | Tensor]], bias: Tensor | None
    ) -> GroupedLinear:
        """Return the linear layers of many experts, parts as `pack_grouped_linear` takes them.

        They stay quantized if all are, in one form.
        """
        codes = [[each for each in part if isinstance(each, PackedWeight)] for part in parts]
        found = [each for part in codes for each in part]
        if found and len(found) == sum(map(len, parts)) and all_alike(found):
            return self.kernels.pack_quantized_experts(codes, self.dtype, bias)
        plain = [[self._plain(each) for each in part] for part in parts]
        return self.kernels.pack_grouped_linear(plain, bias)

    def _plain(self, weight: PackedWeight | Tensor) -> Tensor:
        if isinstance(weight, Tensor):
            return weight
        return self.kernels.dequantize(weight, self.dtype)

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Return `y = x @ weight.T + bias` as the backend computes it."""
        return self.kernels.pack_linear(weight, bias, row_invariant=self.row_invariant)


def _joined(parts: Sequence[PackedWeight | Tensor]) -> Iterator[PackedWeight | Tensor]:
    """Yield matrices, neighbours that are alike as one."""
    for is_plain, each in groupby(parts, lambda part: isinstance(part, Tensor)):
        alike = list(each)
        if is_plain:
            tensors = [part for part in alike if isinstance(part, Tensor)]
            yield torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        else:
            weights = [part for part in alike if isinstance(part, PackedWeight)]
            yield from joined_neighbors(weights)


def _require_finite(name: str, weight: Tensor) -> None:
    # The least and the largest are NaN if one is; `isfinite` takes longer than to make the weights.
    if not torch.stack(weight.aminmax()).isfinite().all():
        raise _not_finite(name)


def _not_finite(name: str) -> ModelError:
    return ModelError(f"{name}: some of its weights are not finite; download the model again")


class Weights(Protocol):
    """Part of a layer with weights."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in memory."""
        ...


def num_bytes(*parts: Tensor | Weights | None) -> int:
    """Return the bytes of tensors and parts in memory."""
    found = (part for part in parts if part is not None)
    return sum(part.nbytes if isinstance(part, Tensor) else part.num_bytes for part in found)


class SideBySide:
    """Linear layers of one input with concatenated outputs; implements `Linear`.

    For weights in different formats, which cannot be one matrix.
    """

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = parts
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self.num_bytes = sum(part.num_bytes for part in parts)
        self.is_packed = all(part.is_packed for part in parts)
        self.row_invariant = all(part.row_invariant for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        return torch.cat([part(x) for part in self._parts], dim=1)
