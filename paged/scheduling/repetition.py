"""Whether an answer goes round in a circle."""

import numpy as np

from pagedrun.paged.scheduling.sequence_table import Int32s

MAX_CYCLE = 128  # tokens


def repeats(tokens: Int32s, count: int) -> bool:
    """Return whether the last tokens are the same `MAX_CYCLE` or fewer, `count` times over.

    tokens: [num_tokens] int32, of which at most the last `MAX_CYCLE` times `count` are looked at.
    """
    longest = min(MAX_CYCLE, len(tokens) // count)
    if not longest:
        return False
    before = tokens[-2 : -longest - 2 : -1]  # those before the last, the nearest first
    for cycle in (np.flatnonzero(before == tokens[-1]) + 1).tolist():
        run = tokens[len(tokens) - cycle * count :]
        if (run[cycle:] == run[:-cycle]).all():
            return True
    return False
