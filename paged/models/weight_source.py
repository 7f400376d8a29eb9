"""WeightSource: where layers get their weights from, and what they are made for."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pagedrun.kernels.backend import Backend
from pagedrun.kernels.linear import Linear
from pagedrun.paged.files.gguf.block_type import PACKED_TYPES
from pagedrun.paged.models.network.parameter import Parameter
from pagedrun.paged.models.network.row_order import RowOrder
from pagedrun.paged.models.network.stored_tensors import NOTHING_STORED, StoredTensors
from pagedrun.paged.values.errors import ModelError

ReadTensor = Callable[[str], Tensor]


class WeightSource:
    """A checkpoint's tensors by name, cast to `dtype` on `device`, for layers run by `kernels`.

    `read` gives a tensor as it is stored. `row_invariant` asks for products whose rows have the
    same bytes whatever their number, where a device has others. `is_mapped` says that what is read
    lies in mapped files; `mapped_bytes` is how much of what was handed out stays there. `stored`
    says what there is, where weights may be quantised.
    """

    def __init__(
        self,
        read: ReadTensor,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Backend,
        *,
        row_invariant: bool = False,
        is_mapped: bool = False,
        stored: StoredTensors = NOTHING_STORED,
    ) -> None:
        self.read = read
        self.dtype = dtype
        self.device = device
        self.kernels = kernels
        self.row_invariant = row_invariant
        self.is_mapped = is_mapped
        self.mapped_bytes = 0
        self.stored = stored

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

    def tensor(self, parameter: Parameter, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor in `dtype`, None: the model's, on its device."""
        tensor, dtype = self.read(parameter.name).to(self.device), dtype or self.dtype
        stored = self.stored.get(parameter.name)
        if stored is not None and stored.dtype in PACKED_TYPES:
            tensor = self.kernels.unpack_blocks(tensor, stored.dtype, dtype)
            _require_finite(parameter.name, tensor)
        return self.ordered(tensor.to(dtype), parameter.order)

    def ordered(self, tensor: Tensor, order: RowOrder | None) -> Tensor:
        """Return a tensor whose first axis is in the order that kernels want."""
        if order is None:
            return tensor
        return tensor[torch.tensor(order.rows(len(tensor)), device=self.device)]

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
        """Return a tensor as `tensor` does, for one that is used as it is and not packed.

        If it needs no cast and no other device, it stays in its file, and takes memory as it is
        used.
        """
        stored = self.read(parameter.name)
        tensor = stored.to(device=self.device, dtype=self.dtype)
        if self.is_mapped and tensor is stored:
            self.mapped_bytes += tensor.nbytes
        return tensor

    def stacked(self, parameters: Sequence[Parameter]) -> Tensor:
        """Return several tensors as one, one after the other along their first axis."""
        return self.joined([self.tensor(each) for each in parameters])

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors one after the other along their first axis."""
        return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]

    def dequantized(
        self,
        name: str,
        codes: Tensor,
        scales: Tensor,
        block: tuple[int, int],
        *,
        zeros: Tensor | None = None,
        group_of: Tensor | None = None,
    ) -> Tensor:
        """Return the matrix [out_features, in_features] of a projection called `name`.

        codes: the same shape, int8 or float8_e4m3fn. scales, and zeros if there are any:
        [num_scale_rows, num_groups], of which each is for a block of rows and columns. `group_of`
        [in_features] gives each column its group where groups are not blocks. Raises `ModelError`
        for a group that there is not, and for weights that are no finite numbers.
        """
        scales = scales.to(self.device, torch.float32)
        zeros = torch.zeros_like(scales) if zeros is None else zeros.to(self.device, torch.float32)
        if group_of is None:
            group_of = torch.arange(codes.shape[1], device=self.device) // block[1]
        group_of = group_of.to(self.device, torch.int64)
        if group_of.min() < 0 or group_of.max() >= scales.shape[1]:
            raise ModelError(
                f"{name}: its columns belong to groups that it has no scales for; download the "
                "model again"
            )
        codes = codes.to(self.device)
        weight = self.kernels.dequantize(codes, scales, zeros, block[0], group_of, self.dtype)
        _require_finite(name, weight)
        return weight

    def looked_up(self, name: str, pairs: Tensor, table: Tensor, scales: Tensor) -> Tensor:
        """Return the weights of a projection called `name`, `table[code] * scale`.

        pairs: [num_rows, num_bytes] uint8, of each byte the low half is the first code. table:
        [16]. scales: [num_rows, num_groups], each for as many neighbours. Returns [num_rows, 2 *
        num_bytes]. Raises `ModelError` for weights that are no finite numbers.
        """
        table, scales = (each.to(self.device, torch.float32) for each in (table, scales))
        weight = self.kernels.unpack_pairs(pairs.to(self.device), table, scales, self.dtype)
        _require_finite(name, weight)
        return weight

    def scales(self, name: str, stored: Tensor) -> Tensor:
        """Return the scales of a matrix called `name` in float32, on the device.

        Raises `ModelError` for scales that are no finite numbers.
        """
        scales = stored.to(self.device, torch.float32)
        _require_finite(name, scales)
        return scales

    def quantized(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return int8 codes of a matrix called `name`, and a scale for each of its rows.

        Raises `ModelError` for weights that are no finite numbers.
        """
        codes, scales = self.kernels.quantize_rows(weight)
        _require_finite(name, scales)
        return codes, scales

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Return `y = x @ weight.T + bias` as the backend computes it."""
        return self.kernels.pack_linear(weight, bias, row_invariant=self.row_invariant)


def _require_finite(name: str, weight: Tensor) -> None:
    # The least and the largest are NaN if one is; `isfinite` takes longer than to make the weights.
    if not torch.stack(weight.aminmax()).isfinite().all():
        raise ModelError(
            f"{name}: some of its weights are no finite numbers; download the model again"
        )
