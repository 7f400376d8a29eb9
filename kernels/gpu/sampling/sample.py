"""The choice of the next token; the choice rule is in reference/sample.py.

The vocabulary is cut into chunks, and four launches see to all rows, whatever they ask for; where
no row filters, the first and the last of them:

1. `_scan`, one program for each chunk of each row: its largest value, and for rows that draw
   without filters its best score, with noise in float32.
2. `find_thresholds`, one for each row: what the filters keep. Rows without filters leave at once.
3. `_draw`, one for each chunk: the best score of rows with filters, among what they keep.
4. `_choose`, one for each row: chunks whose best score could be the best of the row, as a rule only
   one, are drawn again with noise in float64, lowest id on ties.

So the choice is that of the float64 rule. The log of the device and that of the CPU may differ in
the last bit of a float64, and then choices could, for two scores within 1e-14 of each other. At the
border of top-p, whose weights are float32 powers of two here as on the CPU, a token can fall on
the other side where the mass meets the share that is asked for within 1e-6.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.gpu.sampling.gumbel import exact_noise, margin, noise, random_words
from pagedrun.kernels.gpu.sampling.threshold import CAPACITY, LOWEST, find_thresholds, scale
from pagedrun.kernels.reference.sampling.sample import GREEDY_BELOW

_CHUNK = 2048  # tokens of one program; also how many are drawn again for the choice
_TILE = 4096  # tokens that the search for a threshold looks at together
_SCAN_WARPS = 4
_ROW_WARPS = 8  # of programs that have a row to themselves


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    row: Tensor,
    sample: Tensor,
    position: Tensor,
    *,
    filtered: bool = True,
) -> Tensor:
    """Choose one token for each row of logits; see the reference."""
    assert logits.stride(1) == 1, "rows are read in one piece"
    num_rows, vocab_size = logits.shape
    num_chunks = triton.cdiv(vocab_size, _CHUNK)

    def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    ids = scratch(num_rows, dtype=torch.int64)
    if not num_rows:
        return ids
    peaks, bests = scratch(num_rows, num_chunks), scratch(num_rows, num_chunks)
    firsts, lows = scratch(num_rows, num_chunks, dtype=torch.int32), scratch(num_rows)
    asked = (logits, logits.stride(0), vocab_size, temperature)
    filters, stream = (top_k, top_p, min_p), (seed, position, row, sample)
    common = {"GREEDY_BELOW": GREEDY_BELOW, "enable_fp_fusion": False}
    sizes = {"CHUNK": _CHUNK, "num_warps": _SCAN_WARPS, **common}
    by_row = {"CHUNKS": triton.next_power_of_2(num_chunks), **common}
    grid = (num_rows, num_chunks)
    _scan[grid](*asked, *filters, *stream, peaks, firsts, bests, num_chunks, **sizes)
    if filtered:
        lists = scratch(num_rows, CAPACITY.value)
        find_thresholds[(num_rows,)](
            *asked, *filters, peaks, num_chunks, lists, lows,
            TILE=_TILE, num_warps=_ROW_WARPS, **by_row,
        )  # fmt: skip
        _draw[grid](*asked, *filters, *stream, peaks, lows, bests, num_chunks, **sizes)
    _choose[(num_rows,)](
        *asked,
        *stream,
        peaks,
        firsts,
        bests,
        lows,
        num_chunks,
        ids,
        CHUNK=_CHUNK,
        FILTERED=filtered,
        num_warps=_ROW_WARPS,
        **by_row,
    )
    return ids


@triton.jit
def _is_filtered(top_k, top_p, min_p, r):
    has_k, has_p = tl.load(top_k + r) > 0, tl.load(top_p + r) < 1.0
    return has_k | has_p | (tl.load(min_p + r) > 0.0)


@triton.jit
def _words(seed, position, row, sample, r, first, TILE: tl.constexpr):
    """Return the random words of TILE tokens of row r, from token `first` on."""
    return random_words(
        tl.load(seed + r),
        tl.load(position + r),
        tl.load(row + r),
        tl.load(sample + r),
        first,
        TILE,
    )


@triton.jit
def _scan(
    logits,
    stride,
    vocab_size,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    position,
    row,
    sample,
    peaks,
    firsts,
    bests,
    num_chunks,
    CHUNK: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
):
    """Write a chunk's largest z (NaN if it holds one), its first id, and maybe its best score."""
    r, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK
    place = r * num_chunks + tl.program_id(1)
    heat = tl.load(temperature + r)
    is_greedy = heat < GREEDY_BELOW
    z, tokens = scale(logits + r * stride, start, vocab_size, tl.where(is_greedy, 1.0, heat), CHUNK)
    has_nan = tl.max((z != z).to(tl.int32)) > 0
    peak = tl.max(tl.where(z == z, z, -float("inf")))
    tl.store(firsts + place, tl.min(tl.where(z == peak, tokens, vocab_size)))
    tl.store(peaks + place, tl.where(has_nan, float("nan"), peak))
    if (not is_greedy) & (not _is_filtered(top_k, top_p, min_p, r)):
        score = z + noise(_words(seed, position, row, sample, r, start, CHUNK))
        tl.store(bests + place, tl.max(score))


@triton.jit
def _draw(
    logits,
    stride,
    vocab_size,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    position,
    row,
    sample,
    peaks,
    lows,
    bests,
    num_chunks,
    CHUNK: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
):
    """Write a chunk's best score among the tokens that the row's filters keep."""
    r, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK
    place = r * num_chunks + tl.program_id(1)
    heat = tl.load(temperature + r)
    if (heat >= GREEDY_BELOW) & _is_filtered(top_k, top_p, min_p, r):
        low, best = tl.load(lows + r), tl.full((), -float("inf"), tl.float32)
        if tl.load(peaks + place) >= low:
            z, _ = scale(logits + r * stride, start, vocab_size, heat, CHUNK)
            score = z + noise(_words(seed, position, row, sample, r, start, CHUNK))
            best = tl.max(tl.where(z >= low, score, -float("inf")))
        tl.store(bests + place, best)


@triton.jit
def _choose(
    logits,
    stride,
    vocab_size,
    temperature,
    seed,
    position,
    row,
    sample,
    peaks,
    firsts,
    bests,
    lows,
    num_chunks,
    ids,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    FILTERED: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
):
    """Write a row's id: -1, the first of the largest, or the best score in float64."""
    r = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + r)
    chunks = tl.arange(0, CHUNKS)
    inside, places = chunks < num_chunks, r * num_chunks + chunks
    row_peaks = tl.load(peaks + places, mask=inside, other=-float("inf"))
    has_nan = tl.max((row_peaks != row_peaks).to(tl.int32)) > 0
    peak = tl.max(tl.where(row_peaks == row_peaks, row_peaks, -float("inf")))
    choice = tl.full((), -1, tl.int32)
    if (not has_nan) & (tl.abs(peak) < float("inf")):
        if heat < GREEDY_BELOW:
            row_firsts = tl.load(firsts + places, mask=inside, other=vocab_size)
            choice = tl.min(tl.where(row_peaks == peak, row_firsts, vocab_size))
        else:
            best = tl.max(tl.load(bests + places, mask=inside, other=-float("inf")))
            floor = best - margin(best)
            low = tl.full((), LOWEST, tl.float32)  # as of a row without filters
            if FILTERED:
                low = tl.load(lows + r)
            winner = tl.full((), -float("inf"), tl.float64)
            for chunk in range(num_chunks):
                if tl.load(bests + r * num_chunks + chunk) >= floor:
                    start = chunk * CHUNK
                    z, tokens = scale(logits + r * stride, start, vocab_size, heat, CHUNK)
                    words = _words(seed, position, row, sample, r, start, CHUNK)
                    score = z.to(tl.float64) + exact_noise(words)
                    score = tl.where(z >= low, score, -float("inf"))
                    top = tl.max(score)
                    if top > winner:
                        winner = top
                        choice = tl.min(tl.where(score == top, tokens, vocab_size))
    tl.store(ids + r, choice.to(tl.int64))
