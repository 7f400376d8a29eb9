"""The smallest value that the filters keep, found without sorting the vocabulary.

One program for each row that filters. The values near the largest one, if they are enough to decide
and few, are gathered into a short list; a bisection over the bits of float32 then finds the
threshold exactly, in the list or else in the logits. Sums of weights are float64, over tiles in
ascending order.
"""

import triton
import triton.language as tl

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
    """Write the smallest z that stays of each row to `lows`.

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
    """Return the smallest z that stays, by steps 3b and 3c of the choice rule."""
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
    """Return an int32; the order of floats is that of their int32."""
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
