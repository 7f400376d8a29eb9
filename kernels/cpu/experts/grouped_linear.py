"""The linear layers of many experts, each row the same whoever else has its expert."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.experts.chain_experts import multiply_chains
from pagedrun.kernels.cpu.experts.expert_blocks import ExpertBlocks
from pagedrun.kernels.cpu.experts.tile_experts import multiply_tiles
from pagedrun.kernels.cpu.jit import num_threads, spread
from pagedrun.kernels.cpu.simd.amx import tile_shapes
from pagedrun.kernels.kernel_set import KernelSet


class PackedGroupedLinear:
    """`y = x @ weight[e].T + bias[e]`; see the reference.

    weights: float32 or bfloat16. Nothing is copied: matrices are kept and read where they lie, so
    those of a mapped file take memory as they are used. One call computes all experts, spread over
    threads by columns. Products are those of `kernel_set`, None for the processor's best.
    """

    row_invariant = True

    def __init__(
        self,
        weights: Sequence[Sequence[Tensor]],
        bias: Tensor | None = None,
        kernel_set: KernelSet | None = None,
    ) -> None:
        self._weights = [[matrix.contiguous() for matrix in part] for part in weights]
        self.num_experts = len(weights[0])
        self._columns_of_part, self.in_features = weights[0][0].shape
        self.out_features = len(weights) * self._columns_of_part
        self._bias = weights[0][0].new_empty(0, 0) if bias is None else bias.contiguous()
        self.num_bytes = sum(matrix.nbytes for part in weights for matrix in part)
        self.num_bytes += self._bias.nbytes
        addresses = [[matrix.data_ptr() for matrix in part] for part in self._weights]
        self._addresses = np.ascontiguousarray(np.array(addresses, np.int64).T)
        is_bfloat16 = weights[0][0].dtype is torch.bfloat16
        kernel_set = KernelSet.usable(kernel_set)
        self._is_tiles = is_bfloat16 and kernel_set is KernelSet.AMX
        self._is_pairs = is_bfloat16 and kernel_set is not KernelSet.PORTABLE
        self._like = np.empty(0, np.uint16 if is_bfloat16 else np.float32)
        self._operand_like = self._like if self._is_pairs else np.empty(0, np.float32)

    def __call__(self, x: Tensor, starts: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Map rows to [num_rows, out_features], in the dtype of x."""
        out = torch.empty(len(x if tokens is None else tokens), self.out_features, dtype=x.dtype)
        blocks = ExpertBlocks.of(
            as_array(x.contiguous()),
            starts.numpy(),
            None if tokens is None else tokens.numpy(),
            pairs=self._is_pairs,
        )
        spread(len(blocks.experts) * self.out_features * self.in_features)
        multiply = multiply_tiles if self._is_tiles else multiply_chains
        multiply(
            num_threads(),
            self._addresses,
            self._like,
            as_array(self._bias),
            tile_shapes() if self._is_tiles else self._operand_like,
            self._columns_of_part,
            self.in_features,
            blocks.experts,
            blocks.starts,
            blocks.ends,
            blocks.first_blocks,
            blocks.inputs,
            as_array(out),
        )
        return out
