"""What of a plan is worth keeping: prefixes that rows share, as much as the store holds."""

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.prefix_tree import common_to

# Below this a prefix is computed again sooner than a file is found, read and checked.
MIN_STORED_TOKENS = 64


def tokens_to_store(plan: Plan, max_tokens: int) -> NDArray[np.int64]:
    """Return how many leading tokens of each row are to be stored, [num_rows] int64 in run order.

    Only what other rows that run begin with as well: what belongs to one row alone is nobody's
    prefix, and may be private. If all of that is more than `max_tokens`, what more rows share.
    """
    common = plan.tree.common.astype(np.int64)
    common[:1] = 0  # the row before the first is of another window, or not there
    num_rows = 2
    while num_rows <= len(common):
        shared = common_to(num_rows, common.astype(np.int32)).astype(np.int64)
        shared[shared < MIN_STORED_TOKENS] = 0
        # In this order a token is new where the row before does not have it.
        if int(np.maximum(shared - common, 0).sum()) <= max_tokens:
            return shared
        num_rows *= 2
    return np.zeros_like(common)
