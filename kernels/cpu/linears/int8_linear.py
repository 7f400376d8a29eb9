"""A linear layer whose weights and inputs are int8: the fastest products of a kernel set."""

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.linears.block_epilogue import COLUMNS
from pagedrun.kernels.cpu.linears.int8_chains import Int8Chains
from pagedrun.kernels.cpu.linears.int8_tiles import Int8Tiles
from pagedrun.kernels.cpu.linears.int8_words import Int8Words
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.processor import has_features
from pagedrun.kernels.reference.linears.int8_linear import check_in_features, int8_bytes

Products = Int8Tiles | Int8Words | Int8Chains


class Int8Linear:
    """`y = x @ (codes * scales).T + bias`, the rows of x quantised; see the reference.

    Codes are packed, and not kept. Sums are exact, so all `products` give the same bytes; they
    differ in speed. None: the fastest of `kernel_set`, of which None is the processor's best.
    """

    is_packed = True
    row_invariant = True

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        bias: Tensor | None = None,
        kernel_set: KernelSet | None = None,
        products: type[Products] | None = None,
    ) -> None:
        self.out_features, self.in_features = codes.shape
        check_in_features(self.in_features)
        self.num_bytes = int8_bytes(codes, scales, bias)
        num_columns = -(-self.out_features // COLUMNS) * COLUMNS
        columns = np.zeros(num_columns, np.float32)
        columns[: self.out_features] = scales.numpy()
        added = np.zeros(0 if bias is None else num_columns, np.float32)
        if bias is not None:
            added[: self.out_features] = bias.float().numpy()
        multiply = products or _fastest(KernelSet.usable(kernel_set))
        self._multiply = multiply(codes.contiguous().numpy(), columns, added)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features], in the same dtype."""
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        self._multiply(x, out)
        return out


def _fastest(kernel_set: KernelSet) -> type[Products]:
    if kernel_set is KernelSet.AMX and has_features("amx-int8"):
        return Int8Tiles
    return Int8Words if has_features("avx512f", "avx512vnni") else Int8Chains
