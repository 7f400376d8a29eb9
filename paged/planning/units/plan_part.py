"""PlanPart: rows of a plan, with all that the whole plan has decided about them."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.planning.units.packed_requests import PackedRequests
from pagedrun.paged.values.request import Request

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PlanPart:
    """Some rows of a window's plan, in any order; can be pickled, with each shared token once.

    Nothing in it is decided from the part: every number that a row's bytes depend on is that of the
    whole plan. What depends on who runs before and after, `PlannedPart` works out where it runs.

    window: the window's number. places: [num_rows] int64, in the window's run order. requests:
    fitted, each with its index in the input. num_common_tokens: [num_rows] int32, those that each
    has in common with the row before it in this part; 0 for the first, unless the whole plan begins
    with it. num_shared_tokens, num_read_once_tokens, num_stored_tokens: [num_rows] int64, and
    groups: [num_rows] int32, see `PlannedRequest`. begun: by index, how an earlier run has begun an
    answer. min_state_tokens: what a state has to spare, None without recurrent layers.
    """

    window: int
    places: Int64s
    requests: Seq[Request]
    num_common_tokens: Int32s
    num_shared_tokens: Int64s
    num_read_once_tokens: Int64s
    num_stored_tokens: Int64s
    groups: Int32s
    begun: Mapping[int, tuple[int, ...]]
    block_size: int
    prefix_caching: bool
    min_state_tokens: int | None

    def __len__(self) -> int:
        return len(self.requests)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        packed = PackedRequests.of(values.pop("requests"), self.num_common_tokens)
        return _unpacked, (packed, values)

    @property
    def num_tokens(self) -> Int64s:
        """[num_rows] int64, the length of each prompt."""
        lengths = (len(request.prompt_token_ids) for request in self.requests)
        return np.fromiter(lengths, np.int64, len(self))

    def at(self, rows: Int64s) -> "PlanPart":
        """Return some of the rows in another order, none twice.

        rows: [num_rows] int64, by their numbers in this part. None runs before the first.
        """
        requests = [self.requests[row] for row in rows.tolist()]
        common = self.num_common_tokens[rows]
        common[:1] = 0
        for number in (np.flatnonzero(np.diff(rows) != 1) + 1).tolist():
            common[number] = num_common(
                requests[number - 1].prompt_token_ids, requests[number].prompt_token_ids
            )
        return PlanPart(
            window=self.window,
            places=self.places[rows],
            requests=tuple(requests),
            num_common_tokens=common,
            num_shared_tokens=self.num_shared_tokens[rows],
            num_read_once_tokens=self.num_read_once_tokens[rows],
            num_stored_tokens=self.num_stored_tokens[rows],
            groups=self.groups[rows],
            begun=_of(requests, self.begun),
            block_size=self.block_size,
            prefix_caching=self.prefix_caching,
            min_state_tokens=self.min_state_tokens,
        )


def num_common(one: Seq[int], two: Seq[int]) -> int:
    """Return how many leading tokens two prompts have in common."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _unpacked(packed: PackedRequests, values: dict[str, Any]) -> PlanPart:
    return PlanPart(requests=packed.requests(), **values)


def _of(
    requests: Iterable[Request], begun: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    if not begun:
        return {}
    return {each.index: begun[each.index] for each in requests if each.index in begun}
