"""The cap of Gemma's logits."""

import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048  # elements of a program: two loads of 16 bytes a thread
_NUM_WARPS = 8


def cap_logits(logits: Tensor, cap: float) -> None:
    """Bend logits into -cap .. cap, in place; see the reference."""
    assert logits.is_contiguous(), "updated in place"
    num_rows, size = logits.shape
    if num_rows:
        grid = (num_rows, triton.cdiv(size, _TILE))
        _cap_logits[grid](
            logits, size, cap, TILE=_TILE, num_warps=_NUM_WARPS, enable_fp_fusion=False
        )


@triton.jit
def _cap_logits(logits, size, cap, TILE: tl.constexpr):
    row = logits + tl.program_id(0).to(tl.int64) * size
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    values = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    # tanh x = 1 - 2 / (1 + e^2x), which tends to -1 and 1 and keeps NaN.
    bent = cap * (1.0 - 2.0 / (1.0 + tl.exp(values * (2.0 / cap))))
    tl.store(row + columns, bent, mask=inside)
