"""The sum of what a token's experts computed."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32
from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import kernel, part, spread


def combine_experts(
    outputs: Tensor,
    rows: Tensor,
    weights: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """Return each token's weighted sum; see the reference. A token is one thread's."""
    num_tokens, size = len(rows), outputs.shape[1]
    out = torch.empty(num_tokens, size, dtype=outputs.dtype)
    nothing = outputs.new_empty(0, 0)
    spread(rows.numel() * size)
    _combine(
        as_array(outputs),
        rows.numpy(),
        weights.numpy(),
        as_array(nothing if shared is None else shared.contiguous()),
        as_array(nothing if shared_gate is None else shared_gate.contiguous()),
        as_array(out),
    )
    return out


@kernel
def _combine(
    outputs: Any, rows: Any, weights: Any, shared: Any, shared_gate: Any, out: Any
) -> None:
    for token in numba.prange(out.shape[0]):
        total = np.zeros(out.shape[1], np.float32)
        for rank in range(rows.shape[1]):
            _add(outputs[rows[token, rank]], weights[token, rank], total)
        if shared.shape[0] > 0:
            factor = np.float32(1.0)
            if shared_gate.shape[0] > 0:
                gate = to_float32(shared_gate[token, 0])
                factor = np.float32(1.0) / (np.float32(1.0) + exp2(-gate * LOG2_E))
            _add(shared[token], factor, total)
        target = out[token]
        for i in range(total.shape[0]):
            target[i] = from_float32(total[i], out)


@part()
def _add(row: Any, factor: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] += factor * to_float32(row[i])
