"""Linear layers: the fastest way that keeps a row's bits whatever the number of rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from pagedrun.kernels.cpu.linears import onednn_linear
from pagedrun.kernels.cpu.linears.chain_linear import ChainLinear
from pagedrun.kernels.cpu.linears.onednn_linear import OneDnnLinear
from pagedrun.kernels.cpu.linears.row_heights import RowHeights
from pagedrun.kernels.cpu.linears.tile_linear import TileLinear
from pagedrun.kernels.kernel_set import KernelSet


class PackedLinear:
    """`y = x @ weight.T + bias`, each row the same whatever the number of rows.

    weight: [out_features, in_features] float32 or bfloat16; it is packed, and not kept. bias:
    [out_features], same dtype, or None. Products are those of `kernel_set`, None for the
    processor's best.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, kernel_set: KernelSet | None = None
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._multiply = _packed(weight, bias, KernelSet.usable(kernel_set))

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        return self._multiply(x)


def _packed(
    weight: Tensor, bias: Tensor | None, kernel_set: KernelSet
) -> Callable[[Tensor], Tensor]:
    if kernel_set is KernelSet.AMX and weight.dtype is torch.bfloat16:
        return TileLinear(weight, bias)
    if onednn_linear.can_pack(weight.dtype):
        heights = RowHeights.of(
            onednn_linear.multiply, onednn_linear.pack, weight.shape, weight.dtype
        )
        if heights.cuts:
            return OneDnnLinear(weight, bias, heights)
    return ChainLinear(weight, bias)
