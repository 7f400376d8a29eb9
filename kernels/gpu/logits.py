"""Operations on logits: caps, and log-probabilities of tokens with the likeliest alternatives.

Log-probabilities have one program for each token. Sums run over tiles in the order of the
vocabulary, so that a token's bytes do not depend on how many there are. The likeliest tokens are
found one after the other, each by a pass over the row: it is in the cache, and they are few.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.op_values import TokenLogprobs

_CAP_TILE = 2048  # elements of a program: two loads of 16 bytes a thread
_CAP_WARPS = 8


def cap_logits(logits: Tensor, cap: float) -> None:
    """Apply a tanh soft cap to logits, in place; see the reference."""
    assert logits.is_contiguous(), "updated in place"
    num_rows, size = logits.shape
    if num_rows:
        grid = (num_rows, triton.cdiv(size, _CAP_TILE))
        _cap_logits[grid](
            logits, size, cap, TILE=_CAP_TILE, num_warps=_CAP_WARPS, enable_fp_fusion=False
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


_LOGPROBS_TILE = 4096  # tokens that a program looks at together
_LOGPROBS_WARPS = 8


def token_logprobs(logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
    """Return log-probabilities and ranks of tokens; see the reference."""
    assert logits.stride(1) == 1, "rows are read in one piece"
    num_tokens = len(ids)

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    found = TokenLogprobs(
        empty(num_tokens, dtype=torch.float32),
        empty(num_tokens, dtype=torch.int64),
        empty(num_tokens, num_top, dtype=torch.int64),
        empty(num_tokens, num_top, dtype=torch.float32),
    )
    if num_tokens:
        _token_logprobs[(num_tokens,)](
            logits,
            logits.stride(0),
            logits.shape[1],
            rows,
            ids,
            *found,
            num_top,
            TILE=_LOGPROBS_TILE,
            num_warps=_LOGPROBS_WARPS,
            enable_fp_fusion=False,
        )
    return found


@triton.jit
def _tile(row, start, size, TILE: tl.constexpr):
    """Return the logits of tokens start .. start + TILE - 1, -inf from `size` on, and their ids."""
    tokens = start + tl.arange(0, TILE)
    return tl.load(row + tokens, mask=tokens < size, other=-float("inf")).to(tl.float32), tokens


@triton.jit(do_not_specialize=["num_top"])
def _token_logprobs(
    logits,
    stride,
    vocab_size,
    rows,
    ids,
    logprobs,
    ranks,
    top_ids,
    top_logprobs,
    num_top,
    TILE: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(rows + t) * stride
    chosen = tl.load(row + tl.load(ids + t)).to(tl.float32)
    peak = tl.full((), -float("inf"), tl.float32)
    rank = tl.full((), 0, tl.int32)
    for start in range(0, vocab_size, TILE):
        x, tokens = _tile(row, start, vocab_size, TILE)
        peak = tl.maximum(peak, tl.max(x))
        rank += tl.sum(((x >= chosen) & (tokens < vocab_size)).to(tl.int32))
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, vocab_size, TILE):
        x, tokens = _tile(row, start, vocab_size, TILE)
        weights = tl.where(tokens < vocab_size, tl.exp(x - peak), 0.0)
        total += tl.sum(weights).to(tl.float64)
    log_sum = peak.to(tl.float64) + tl.log(total)
    tl.store(logprobs + t, (chosen.to(tl.float64) - log_sum).to(tl.float32))
    tl.store(ranks + t, rank.to(tl.int64))
    # What comes next is below the last one, or as large and of a higher id.
    last, last_id = tl.full((), float("inf"), tl.float32), tl.full((), -1, tl.int32)
    for i in range(num_top):
        best, best_id = tl.full((), -float("inf"), tl.float32), vocab_size
        for start in range(0, vocab_size, TILE):
            x, tokens = _tile(row, start, vocab_size, TILE)
            comes = (x < last) | ((x == last) & (tokens > last_id))
            comes = comes & (tokens < vocab_size)
            most = tl.max(tl.where(comes, x, -float("inf")))
            first = tl.min(tl.where(comes & (x == most), tokens, vocab_size))
            if (first < vocab_size) & ((most > best) | (best_id == vocab_size)):
                best, best_id = most, first
        tl.store(top_ids + t * num_top + i, best_id.to(tl.int64))
        tl.store(top_logprobs + t * num_top + i, (best.to(tl.float64) - log_sum).to(tl.float32))
        last, last_id = best, best_id
