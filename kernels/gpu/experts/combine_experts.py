"""The sum of what a token's experts computed."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024
_NUM_WARPS = 4


def combine_experts(
    outputs: Tensor,
    rows: Tensor,
    weights: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """Return each token's weighted sum; see the reference."""
    (num_tokens, num_chosen), size = rows.shape, outputs.shape[1]
    out = torch.empty(num_tokens, size, dtype=outputs.dtype, device=outputs.device)
    if num_tokens:
        _combine[(num_tokens, triton.cdiv(size, _TILE))](
            outputs,
            rows,
            weights,
            None if shared is None else shared.contiguous(),
            None if shared_gate is None else shared_gate.contiguous(),
            out,
            size,
            NUM_CHOSEN=num_chosen,
            TILE=_TILE,
            num_warps=_NUM_WARPS,
            enable_fp_fusion=False,
        )
    return out


@triton.jit
def _combine(
    outputs,
    rows,
    weights,
    shared,
    shared_gate,
    out,
    size,
    NUM_CHOSEN: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: some columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    total = tl.zeros((TILE,), tl.float32)
    for rank in tl.static_range(NUM_CHOSEN):
        row = tl.load(rows + token * NUM_CHOSEN + rank)
        weight = tl.load(weights + token * NUM_CHOSEN + rank)
        own = tl.load(outputs + row * size + columns, mask=inside, other=0.0).to(tl.float32)
        total += weight * own
    if shared is not None:
        all_pass = tl.load(shared + token * size + columns, mask=inside, other=0.0).to(tl.float32)
        if shared_gate is not None:
            gate = tl.load(shared_gate + token).to(tl.float32)
            all_pass *= 1.0 / (1.0 + tl.exp(-gate))
        total += all_pass
    tl.store(out + token * size + columns, total, mask=inside)
