"""The sum of what a token's experts computed."""

import torch
from torch import Tensor


def combine_experts(
    outputs: Tensor,
    rows: Tensor,
    weights: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """Return each token's weighted sum, in float32 and in order of rank, rounded once.

    outputs: [num_rows, size], what experts computed. rows, weights: [num_tokens, num_chosen], int64
    and float32, a token's rows of it by rank and their factors. shared: [num_tokens, size], what
    the expert computed that all tokens pass; it is added last, times `sigmoid(shared_gate)`
    ([num_tokens, 1]; None: times 1). Returns [num_tokens, size] in the dtype of outputs.
    """
    wide = torch.promote_types(outputs.dtype, torch.float32)
    total = torch.zeros(len(rows), outputs.shape[1], dtype=wide, device=outputs.device)
    for rank in range(rows.shape[1]):
        total += weights[:, rank, None] * outputs[rows[:, rank]].to(wide)
    if shared is not None:
        factor = 1.0 if shared_gate is None else shared_gate.to(wide).sigmoid()
        total += factor * shared.to(wide)
    return total.to(outputs.dtype)
