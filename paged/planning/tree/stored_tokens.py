"""What of the prompts is worth keeping in a prefix store: what rows share, as much as it holds."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.prefix_store.entry import MIN_STORED_TOKENS
from pagedrun.paged.planning.tree.prefix_tree import common_to


class StoreRoom(NamedTuple):
    """How many tokens a prefix store has room for, and how many a state takes the room of."""

    num_tokens: int = 0
    tokens_per_state: int = 0


NO_ROOM = StoreRoom()


def tokens_to_store(common: NDArray[np.int32], room: StoreRoom) -> NDArray[np.int64]:
    """Return how many leading tokens of each row are to be stored, [num_rows] int64 in run order.

    common: [num_rows] int32, tokens in common with the row before. Only what other rows that run
    begin with as well is chosen: what belongs to one row alone is no other row's prefix, and may be
    private. If there is no room for all of that, what more rows share.
    """
    before = common.astype(np.int64)
    before[:1] = 0  # the row before the first is of another window, or not there
    num_rows = 2
    while num_rows <= len(before) and room.num_tokens:
        shared = common_to(num_rows, before.astype(np.int32)).astype(np.int64)
        shared[shared < MIN_STORED_TOKENS] = 0
        # In this order a token is new where the row before does not have it.
        new = np.maximum(shared - before, 0)
        ends = (shared > 0) & ((new > 0) | (np.diff(shared, prepend=0) != 0))
        num_states = np.count_nonzero(ends)  # at most
        if int(new.sum()) + room.tokens_per_state * num_states <= room.num_tokens:
            return shared
        num_rows *= 2
    return np.zeros_like(before)
