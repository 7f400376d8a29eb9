"""Where the run order of a plan is cut into units, of which replicas take the next one when they
have room.

Large units spare prefixes that would be computed again, small ones at the end let all replicas end
at about the same time: guided self-scheduling (Polychronopoulos and Kuck, 1987). Each unit has a
share of the rows that are left. Near the size that it should have, the cut is where the rows on
both sides have least in common.
"""

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

# Units have between so many rows, and the last ones of a window what is left.
LEAST_ROWS, MOST_ROWS = 64, 4096
# A unit is what is left, divided by so many for each replica.
SHARES_A_REPLICA = 4
# How far from its size a unit may end, as a share of that.
NEAR = 0.25


def unit_cuts(common: Int32s, num_replicas: int, *, has_next: bool = False) -> Int64s:
    """Return where units begin and end, [num_units + 1] int64: 0 first, the number of rows last.

    common: [num_rows] int32, tokens that each row has in common with the one before. has_next:
    whether another window follows, so that no replica will be idle at the end of this one: units
    then do not get smaller. A function of the plan alone: whoever has it cuts in the same places.
    """
    num_rows = len(common)
    cuts = [0]
    while (left := num_rows - cuts[-1]) > 0:
        size = (num_rows if has_next else left) // (SHARES_A_REPLICA * num_replicas)
        size = min(max(size, LEAST_ROWS), MOST_ROWS)
        cuts.append(num_rows if left <= size * (1 + NEAR) else _end_near(common, cuts[-1], size))
    return np.array(cuts, dtype=np.int64)


def _end_near(common: Int32s, begin: int, size: int) -> int:
    """Return where a unit of about `size` rows ends best: of equal places the nearest."""
    reach = int(size * NEAR)
    first = begin + size - reach
    near = common[first : begin + size + reach + 1]
    (best,) = np.nonzero(near == near.min())
    return first + int(best[np.argmin(np.abs(best - reach))])
