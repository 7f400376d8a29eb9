"""WeightSource: where layers get their weights from, and what they are made for."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pagedrun.kernels.backend import Backend
from pagedrun.kernels.linear import Linear
from pagedrun.paged.models.network.neighbour_pairs import NeighbourPairs
from pagedrun.paged.models.network.parameter import Parameter
from pagedrun.paged.models.network.stored_tensors import NOTHING_STORED, StoredTensors

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

    def tensor(self, parameter: Parameter, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor in `dtype`, None: the model's, on its device."""
        tensor = self.read(parameter.name).to(device=self.device, dtype=dtype or self.dtype)
        return self.in_halves(tensor, parameter.pairs)

    def in_halves(self, tensor: Tensor, pairs: NeighbourPairs | None) -> Tensor:
        """Return a tensor whose first axis is in the order that kernels turn."""
        if pairs is None:
            return tensor
        return tensor[torch.tensor(pairs.in_halves(len(tensor)), device=self.device)]

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
        tensors = [self.tensor(each) for each in parameters]
        return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Return `y = x @ weight.T + bias` as the backend computes it."""
        return self.kernels.pack_linear(weight, bias, row_invariant=self.row_invariant)
