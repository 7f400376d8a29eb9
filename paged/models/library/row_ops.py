"""RowOps: what a library's code asks torch for, by ops whose rows do not depend on their number."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from pagedrun.kernels.backend import Backend
from pagedrun.kernels.linear import Linear
from pagedrun.paged.models.library.row_activations import gelu, sigmoid, silu

_ACTIVATIONS: Mapping[Callable[..., Any], Callable[..., Tensor]] = {
    functional.silu: silu,
    functional.gelu: gelu,
    torch.sigmoid: sigmoid,
    Tensor.sigmoid: sigmoid,
}


class RowOps(TorchFunctionMode):
    """While it is entered, products with a model's matrices and some activations are pagedrun's.

    The code that asks for them may lie anywhere: in linear layers, routers of experts, or between
    layers. Everything else is done by torch.
    """

    def __init__(self, model: nn.Module, kernels: Backend, *, row_invariant: bool) -> None:
        """Pack the matrices of a model; linear layers give up theirs one by one."""
        super().__init__()
        self.given_up: set[Tensor] = set()  # parameters that hold no numbers any more
        self._products: dict[Tensor, tuple[Linear, Tensor | None]] = {}
        for module in model.modules():
            parameters, bias = module._parameters, None
            weight = parameters.get("weight")
            if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding):
                continue
            matrix = weight.detach()
            if isinstance(module, Conv1D):  # a linear layer whose matrix is stored on its side
                matrix = matrix.T.contiguous()
            if is_linear := isinstance(module, nn.Linear | Conv1D):
                bias = parameters.get("bias")
            packed_bias = None if bias is None else bias.detach()
            linear = kernels.pack_linear(matrix, packed_bias, row_invariant=row_invariant)
            if is_linear:
                weight = parameters["weight"] = self._without_numbers(weight)
                bias = parameters["bias"] = None if bias is None else self._without_numbers(bias)
            self._products[weight] = linear, bias

    @property
    def products(self) -> Sequence[Linear]:
        """What multiplies by the matrices."""
        return [linear for linear, _ in self._products.values()]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute what torch was asked for."""
        kwargs = kwargs or {}
        if func in _ACTIVATIONS:
            return _ACTIVATIONS[func](*args, **kwargs)
        if func is functional.linear:
            rows = self._product(*args, **kwargs)
        elif func is torch.addmm and len(args) == 3 and not kwargs:  # of a Conv1D
            bias, x, weight = args
            rows = self._product(x, weight, bias)
        else:
            rows = None
        return func(*args, **kwargs) if rows is None else rows

    def _product(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """Return a product [..., out_features]; None if it is none of those that were packed."""
        linear, packed_bias = self._products.get(weight, (None, None))
        if linear is None or bias is not packed_bias or input.dtype != weight.dtype:
            return None
        rows = linear(input.reshape(-1, input.shape[-1]))
        return rows.view(*input.shape[:-1], rows.shape[-1])

    def _without_numbers(self, parameter: Tensor) -> nn.Parameter:
        """Return one that takes no memory; what code makes of it in another way is NaN."""
        nan = parameter.new_full((), float("nan")).expand(parameter.shape)
        given_up = nn.Parameter(nan, requires_grad=False)
        self.given_up.add(given_up)
        return given_up
