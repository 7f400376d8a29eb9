"""Sampling of the next token; the sampling rule is in reference/sampling.py.

The vocabulary is split into chunks. There are four launches for all rows; without filters, only the
first and the last:

1. `_scan`, one program for each chunk of each row: its largest value, and for rows that draw
   without filters its best score, with noise in float32.
2. `find_thresholds`, one for each row: the smallest value that the filters keep, found without
   sorting the vocabulary. Rows without filters leave at once. The values near the largest one, if
   they are enough to decide and few, are gathered into a short list; a bisection over the bits of
   float32 then finds the threshold exactly, in the list or else in the logits. Sums of weights are
   float64, over tiles in ascending order.
3. `_draw`, one for each chunk: the best score of rows with filters, among what they keep.
4. `_choose`, one for each row: chunks whose best score could be the best of the row, as a rule only
   one, are drawn again with noise in float64, lowest id on ties.

The float32 noise is off by less than 1e-5, so scores further below the best than `margin` cannot be
the choice.

So the choice is that of the float64 rule. The log of the device and that of the CPU may differ in
the last bit of a float64, and then choices could, for two scores within 1e-14 of each other. At the
border of top-p, whose weights are float32 powers of two here as on the CPU, a token can fall on
the other side where the mass meets the share that is asked for within 1e-6.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagedrun.kernels.reference.sampling import GREEDY_BELOW

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
    """Sample one token for each row of logits; see the reference."""
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


REACH = tl.constexpr(8.0)  # nats below the largest value; what lies further weighs under 3.4e-4
CAPACITY = tl.constexpr(8192)  # values in a row's short list
LOWEST = tl.constexpr(-3.4028234663852886e38)  # the smallest float32: -inf is never chosen
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def scale(logits, start, size, temperature, TILE: tl.constexpr):
    """Return z of tokens start .. start + TILE - 1, -inf from `size` on, and their ids."""
    tokens = start + tl.arange(0, TILE)
    x = tl.load(logits + tokens, mask=tokens < size, other=-float("inf")).to(tl.float32)
    return tl.div_rn(x, tl.zeros_like(x) + temperature), tokens


@triton.jit
def find_thresholds(
    logits,
    stride,
    vocab_size,
    temperature,
    top_k,
    top_p,
    min_p,
    peaks,
    num_chunks,
    lists,
    lows,
    CHUNKS: tl.constexpr,
    TILE: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
):
    """Write the threshold of each row, the smallest z that passes its filters, to `lows`.

    peaks: [num_rows, num_chunks], the largest z of each chunk, NaN if it holds one.
    lists: [num_rows, CAPACITY] float32, overwritten.
    """
    r = tl.program_id(0).to(tl.int64)
    heat, k = tl.load(temperature + r), tl.load(top_k + r)
    p, least = tl.load(top_p + r), tl.load(min_p + r)
    low = tl.full((), LOWEST, tl.float32)
    chunks = tl.arange(0, CHUNKS)
    inside = chunks < num_chunks
    row_peaks = tl.load(peaks + r * num_chunks + chunks, mask=inside, other=-float("inf"))
    is_filtered = (heat >= GREEDY_BELOW) & ((k > 0) | (p < 1.0) | (least > 0.0))
    has_choice = (tl.max((row_peaks != row_peaks).to(tl.int32)) == 0) & is_filtered
    peak = tl.max(row_peaks)
    if has_choice & (tl.abs(peak) < float("inf")):
        if least > 0.0:
            low = tl.maximum(low, peak + tl.log(least.to(tl.float64)).to(tl.float32))
        if (k > 0) | (p < 1.0):
            row_logits, row_list = logits + r * stride, lists + r * CAPACITY
            low = _filter(row_logits, row_list, vocab_size, heat, k, p, peak, low, TILE)
    tl.store(lows + r, low)


@triton.jit
def _filter(
    logits, short_list, vocab_size, temperature, top_k, top_p, peak, low, TILE: tl.constexpr
):
    """Return the smallest z that passes top-k and top-p, by steps 3b and 3c of the rule."""
    near = tl.maximum(low, peak - REACH)
    num_near = tl.zeros((), tl.int32)
    mass_near, mass = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    for start in range(0, vocab_size, TILE):
        z, _ = scale(logits, start, vocab_size, temperature, TILE)
        weight = tl.exp2((z - peak) * _LOG2_E).to(tl.float64)
        num_near += tl.sum((z >= near).to(tl.int32))
        mass_near += tl.sum(tl.where(z >= near, weight, 0.0))
        mass += tl.sum(tl.where(z >= low, weight, 0.0))
    is_enough = tl.where(top_k > 0, num_near >= top_k, mass_near >= top_p.to(tl.float64) * mass)
    if is_enough & (num_near <= CAPACITY):
        count = tl.zeros((), tl.int32)
        for start in range(0, vocab_size, TILE):
            z, _ = scale(logits, start, vocab_size, temperature, TILE)
            is_near = z >= near
            number = tl.sum(is_near.to(tl.int32))
            if number > 0:
                places = count + tl.cumsum(is_near.to(tl.int32), axis=0) - 1
                tl.store(short_list + places, z, mask=is_near)
            count += number
        tl.debug_barrier()  # the list is read by other threads than wrote it
        threshold = _select(short_list, count, 1.0, top_k, top_p, peak, near, mass, TILE)
    else:
        threshold = _select(logits, vocab_size, temperature, top_k, top_p, peak, low, mass, TILE)
    return threshold


@triton.jit
def _select(values, size, temperature, top_k, top_p, peak, low, mass, TILE: tl.constexpr):
    """Return the threshold of top-k and then of top-p among the values of at least `low`."""
    threshold = low
    if top_k > 0:
        threshold = _bisect(
            values, size, temperature, top_k.to(tl.float64), peak, threshold, False, TILE
        )
    if top_p < 1.0:
        if top_k > 0:
            mass = _weigh(values, size, temperature, peak, _key(threshold), True, TILE)
        target = top_p.to(tl.float64) * mass
        threshold = _bisect(values, size, temperature, target, peak, threshold, True, TILE)
    return threshold


@triton.jit
def _bisect(
    values, size, temperature, target, peak, low, WEIGHTED: tl.constexpr, TILE: tl.constexpr
):
    """Return the largest t from `low` to `peak` for which the values >= t weigh `target`."""
    first, last = _key(low).to(tl.int64), _key(peak).to(tl.int64)
    while first < last:
        middle = first + (last - first + 1) // 2
        key = middle.to(tl.int32)
        if _weigh(values, size, temperature, peak, key, WEIGHTED, TILE) >= target:
            first = middle
        else:
            last = middle - 1
    bits = first.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _key(z):
    """Return the int32 key of a float32: keys have the order of the floats."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weigh(values, size, temperature, peak, key, WEIGHTED: tl.constexpr, TILE: tl.constexpr):
    """Return the number of values whose key is at least `key`, or the sum of their weights."""
    total = tl.zeros((), tl.float64)
    for start in range(0, size, TILE):
        z, _ = scale(values, start, size, temperature, TILE)
        is_above = _key(z) >= key
        if WEIGHTED:
            weight = tl.exp2((z - peak) * _LOG2_E).to(tl.float64)
            total += tl.sum(tl.where(is_above, weight, 0.0))
        else:
            total += tl.sum(is_above.to(tl.int32)).to(tl.float64)
    return total


@triton.jit
def random_words(seed, position, row, sample, first, TILE: tl.constexpr):
    """Return the words of tokens first .. first + TILE - 1 as [TILE] uint32; first: multiple of 4.

    Philox4x32-10, one counter for four neighboring tokens.
    """
    counter = (first // 4 + tl.arange(0, TILE // 4)).to(tl.uint32)
    zero = counter * 0
    words = tl.philox(
        seed.to(tl.uint64),
        counter,
        zero + position.to(tl.uint32),
        zero + row.to(tl.uint32),
        zero + sample.to(tl.uint32),
        10,
    )
    even, odd = tl.interleave(words[0], words[2]), tl.interleave(words[1], words[3])
    return tl.interleave(even, odd)


@triton.jit
def noise(words):
    """Return the Gumbel noise as float32, precise for u close to 1 and to 0.

    With v = 1 - u, -log(u) is v + v²/2 + v³/3 + … where v is small.
    """
    u = (words.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    v = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    series = 1.0 / 9.0 + v * 0.1
    series = 0.125 + v * series
    series = 1.0 / 7.0 + v * series
    series = 1.0 / 6.0 + v * series
    series = 0.2 + v * series
    series = 0.25 + v * series
    series = 1.0 / 3.0 + v * series
    series = 0.5 + v * series
    series = v + v * v * series
    return -tl.log(tl.where(v < 0.125, series, -tl.log(u)))


@triton.jit
def exact_noise(words):
    """Return the Gumbel noise as float64."""
    u = (words.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
    return -tl.log(-tl.log(u))


@triton.jit
def margin(best):
    """Return the tolerance below the best float32 score: ten times its error."""
    return 1e-4 + 1e-6 * tl.abs(best)
