"""PlannedPart: rows of a plan as a run takes them, where nothing runs beside them.

What a row finds in the pool, what is kept for the next one, the keys of blocks, where later rows
leave a path and where states are kept follow from which rows run in this pool and in which order.
A row of the plan that runs elsewhere finds nothing here, and nothing is kept for it. Hits change no
row's bytes; what does change them comes with the `PlanPart`.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.planning.duplicates import Duplicates
from pagedrun.paged.planning.plan_end import PlanEnd
from pagedrun.paged.planning.tree.block_names import BlockNames
from pagedrun.paged.planning.tree.state_points import StatePoints
from pagedrun.paged.planning.units.plan_part import PlanPart, num_common
from pagedrun.paged.values.branch_point import BranchPoint
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.planned_sharing import PlannedSharing
from pagedrun.paged.values.request import Completion, Request


class PlannedPart:
    """A part in its run order; iterate it for `PlannedRequest`s, made one by one.

    A part has no duplicates and nothing that is copied or too large: who has the whole plan answers
    those. `num_common_tokens` [num_rows] int32 are those that each row has in common with the one
    before it, the first with the last row of the part before. `states` are None without recurrent
    layers.
    """

    def __init__(
        self, part: PlanPart, after: PlanEnd | None = None, *, has_next: bool = False
    ) -> None:
        """Plan the rows of a part.

        after: the end of what ran before in the same pool. has_next: whether something follows,
        for which the last row's prefix is kept.
        """
        self.part = part
        self.duplicates = Duplicates(())
        self.too_large: Seq[Request] = ()
        self.num_copied = 0
        self.num_tokens = part.num_tokens
        self.num_common_tokens = part.num_common_tokens
        last = None if after is None else after.last_request
        if last is not None and len(part):
            self.num_common_tokens = part.num_common_tokens.copy()
            first = part.requests[0].prompt_token_ids
            self.num_common_tokens[0] = num_common(last.prompt_token_ids, first)
        self.states = self._states(None if after is None else after.state_points, has_next)
        self.num_keep_blocks = self._keep_blocks(has_next=has_next)
        self.branch_points = _branches(self.num_keep_blocks)
        # Nothing that takes time for many rows is left to whoever iterates.
        self._block_names = self._named_blocks()

    def __len__(self) -> int:
        return len(self.part)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of the rows."""
        return int(self.num_tokens.sum())

    @property
    def end(self) -> PlanEnd:
        """Where this ends, for what follows in the same pool."""
        last = self.part.requests[-1] if len(self) else None
        return PlanEnd(self.part.window, last, None if self.states is None else self.states.open)

    @property
    def num_blocks_found(self) -> NDArray[np.int64]:
        """[num_rows] int64, blocks of each that the one before has left."""
        found = (self.num_common_tokens // self.part.block_size).astype(np.int64)
        return found if self.part.prefix_caching else np.zeros_like(found)

    @property
    def sharing(self) -> PlannedSharing:
        """What the rows of the part have in common, and the first one with the part before."""
        size, caching = self.part.block_size, self.part.prefix_caching
        common = int(np.minimum(self.num_common_tokens, self.num_tokens - 1).sum())
        found = self.num_common_tokens.astype(np.int64) // size
        kept = np.append(found[1:], 0)[: len(found)]
        return PlannedSharing(
            achievable_hit_tokens=common * caching,
            block_hit_tokens=self.num_block_hit_tokens * caching,
            common_tokens=common,
            num_shared_blocks=int(np.maximum(kept - found, 0).sum()) * caching,
            num_duplicates=0,
        )

    @property
    def num_hit_tokens(self) -> NDArray[np.int64]:
        """[num_rows] int64, prompt tokens of each that whole cached blocks spare, where states are
        needed with these."""
        size = self.part.block_size
        if self.states is not None:
            return np.array(self.states.begins, np.int64) * size
        hits = self.num_common_tokens.astype(np.int64) // size * size
        return np.minimum(hits, self.num_tokens - 1)

    @property
    def num_block_hit_tokens(self) -> int:
        """Prompt tokens that whole cached blocks spare."""
        return int(self.num_hit_tokens.sum())

    def copied(self) -> Iterator[Completion]:
        """Yield nothing."""
        return iter(())

    def __iter__(self) -> Iterator[PlannedRequest]:
        part = self.part
        rows = zip(part.requests, self._block_names, strict=True)
        for number, (request, block_keys) in enumerate(rows):
            yield PlannedRequest(
                request,
                int(part.places[number]),
                block_keys,
                num_shared_tokens=int(part.num_shared_tokens[number]),
                num_read_once_tokens=int(part.num_read_once_tokens[number]),
                num_keep_blocks=int(self.num_keep_blocks[number]),
                group=(part.window, int(part.groups[number])),
                num_common_tokens=int(self.num_common_tokens[number]),
                num_stored_tokens=int(part.num_stored_tokens[number]),
                branch_point=self.branch_points[number],
                num_state_blocks=0 if self.states is None else self.states.begins[number],
                state_points=self._state_points(number, request),
                begun_token_ids=part.begun.get(request.index, ()),
            )

    def _keep_blocks(self, *, has_next: bool) -> NDArray[np.int64]:
        """Return how many leading blocks of each row the one after it needs again, [num_rows]."""
        size = self.part.block_size
        keep = np.append(self.num_common_tokens[1:] // size, 0)[: len(self)].astype(np.int64)
        if has_next:
            keep[-1:] = self.num_tokens[-1:] // size
        return keep * self.part.prefix_caching

    def _named_blocks(self) -> BlockNames:
        """Return the keys of each row's blocks; only what somebody else has needs a name."""
        part, found = self.part, self.num_blocks_found
        shared = part.num_shared_tokens // part.block_size * part.prefix_caching
        num_keys = np.maximum(np.maximum(shared, found), self.num_keep_blocks)
        found[:1] = 0  # of a row that is not in the part
        prompts = [request.prompt_token_ids for request in part.requests]
        return BlockNames(prompts, num_keys, found, part.block_size)

    def _states(self, before: BranchPoint | None, has_next: bool) -> StatePoints | None:
        part = self.part
        if part.min_state_tokens is None or not part.prefix_caching:
            return None
        return StatePoints.of(
            self.num_common_tokens,
            self._state_limits(),
            part.block_size,
            before=before,
            has_next=has_next,
            min_tokens=part.min_state_tokens,
        )

    def _state_limits(self) -> NDArray[np.int64]:
        """Return behind how many tokens each row can begin: there is one to compute, and all that
        are to be scored."""
        asked = (request.params.prompt_logprobs is not None for request in self.part.requests)
        scored = np.fromiter(asked, dtype=np.bool_, count=len(self))
        return (self.num_tokens - 1) * ~scored

    def _state_points(self, number: int, request: Request) -> BranchPoint | None:
        if self.states is None:
            return None
        if request.params.num_drawn_samples > 1:
            return self.states.left_by_samples(number, len(request.prompt_token_ids))
        return self.states.left[number]


def _branches(num_keep_blocks: NDArray[np.int64]) -> list[BranchPoint]:
    """Return where later rows leave each row's path, in run order.

    num_keep_blocks: [num_rows] int64, what the row after each has in common with it. A row behind
    that one has the least of all between them.
    """
    found: list[BranchPoint] = []
    following: BranchPoint | None = None
    for count in reversed(num_keep_blocks.tolist()):
        while following is not None and following.num_blocks >= count:
            following = following.next
        following = BranchPoint(count, following)
        found.append(following)
    return found[::-1]
