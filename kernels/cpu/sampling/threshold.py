"""The smallest value that top-k and top-p keep, found without sorting the vocabulary."""

from typing import Any

import numpy as np

from pagedrun.kernels.cpu.exp2 import LOG2_E, exp2
from pagedrun.kernels.cpu.jit import REORDERED, part

# How far below the largest value the search looks, first here, then wider. In nats: beyond 16 the
# weights of a whole vocabulary hardly add up to a hundredth.
_REACHES = (np.float32(4.0), np.float32(8.0), np.float32(16.0), np.float32(np.inf))


@part()
def filter_threshold(
    z: Any, block_peaks: Any, block_size: Any, peak: Any, low: Any, top_k: Any, top_p: Any
) -> Any:
    """Return the smallest z that stays, by steps 3b and 3c of the choice rule.

    z: [vocab_size] float32. block_peaks: the largest of each `block_size` values. peak: the largest
    of all. low: the smallest value that min_p lets stay, more than -inf. top_k up to 0: off; top_p
    from 1: off.
    """
    mass = _mass(z, block_peaks, block_size, peak, low) if top_p < 1 and top_k <= 0 else 0.0
    values = np.empty(z.shape[0], np.float32)
    for reach in _REACHES:
        floor = max(low, peak - reach)
        count = _collect(z, block_peaks, block_size, floor, values)
        complete = floor == low
        threshold = low
        if top_k > 0:
            if count < top_k and not complete:
                continue
            if count > top_k:
                threshold = _select(values[:count], np.float64(top_k), peak, False)
            if top_p >= 1:
                return threshold
            count = _collect(z, block_peaks, block_size, max(threshold, floor), values)
            mass = _sum_weights(values[:count], peak, floor)
        elif _sum_weights(values[:count], peak, floor) < top_p * mass and not complete:
            continue
        return _select(values[:count], top_p * mass, peak, True)
    return low


@part()
def _collect(z: Any, block_peaks: Any, block_size: Any, floor: Any, values: Any) -> Any:
    """Gather the values of at least `floor`; return how many."""
    count = 0
    for block in range(block_peaks.shape[0]):
        if block_peaks[block] >= floor:
            for v in range(block * block_size, min((block + 1) * block_size, z.shape[0])):
                values[count] = z[v]
                count += z[v] >= floor
    return count


@part()
def _mass(z: Any, block_peaks: Any, block_size: Any, peak: Any, low: Any) -> Any:
    """Return the sum of the weights of the values of at least `low`."""
    total = np.float64(0.0)
    for block in range(block_peaks.shape[0]):
        if block_peaks[block] >= low:
            end = min((block + 1) * block_size, z.shape[0])
            total += _sum_weights(z[block * block_size : end], peak, low)
    return total


@part(fastmath=REORDERED)
def _sum_weights(values: Any, peak: Any, low: Any) -> Any:
    total = np.float64(0.0)
    for i in range(values.shape[0]):
        weight = np.float64(exp2((values[i] - peak) * LOG2_E))
        total += weight if values[i] >= low else np.float64(0.0)
    return total


@part()
def _select(values: Any, target: Any, peak: Any, weighted: Any) -> Any:
    """Return the largest t for which the values >= t weigh `target`: quickselect, in place.

    Each value weighs 1, or `exp(value - peak)` if `weighted`. If all together weigh less, by an
    error of rounding, the smallest is returned.
    """
    low, high = 0, values.shape[0]
    while high - low > 1:
        pivot = values[(low + high) // 2]
        # values[low:above] > pivot, values[above:i] == pivot, values[below:high] < pivot
        above, i, below = low, low, high
        weight_above, weight_equal = np.float64(0.0), np.float64(0.0)
        while i < below:
            value = values[i]
            weight = np.float64(exp2((value - peak) * LOG2_E)) if weighted else np.float64(1.0)
            if value > pivot:
                values[i], values[above] = values[above], value
                above += 1
                i += 1
                weight_above += weight
            elif value < pivot:
                below -= 1
                values[i], values[below] = values[below], value
            else:
                i += 1
                weight_equal += weight
        if weight_above >= target and above > low:
            high = above
        elif weight_above + weight_equal >= target or below == high:
            return pivot
        else:
            target -= weight_above + weight_equal
            low = below
    return values[low]
