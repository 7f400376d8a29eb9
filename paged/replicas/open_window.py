"""OpenWindow: a planned window whose rows are out, and who else is answered with each answer."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pagedrun.paged.planning.duplicates import fan_out
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.plan_part import PlanPart
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, Request


class OpenWindow:
    """Has the requests of a plan until they are answered."""

    def __init__(self, plan: Plan) -> None:
        whole = plan.part(0, len(plan))
        hits = plan.num_hit_tokens.tolist()
        self._plan = plan
        self._requests = {request.index: request for request in whole.requests}
        self._asked = dict(plan.duplicates.asked)
        self.rows = tuple(self._requests)  # in run order
        self._num_planned = dict(zip(self.rows, hits, strict=True))

    def units(self, cuts: Seq[int]) -> Iterator[tuple[Seq[int], Seq[int]]]:
        """Yield the rows of each unit and their places; cuts: where units begin, and the last
        ends."""
        for begin, end in pairwise(cuts):
            yield self.rows[begin:end], range(begin, end)

    def part(self, places: Seq[int]) -> PlanPart:
        """Return the rows at some places of the run order, as a replica takes them."""
        return self._plan.part_at(np.array(places, np.int64))

    def answer(self, found: Completion) -> Iterator[Completion]:
        """Yield the completions of a row that a replica has answered, with its own request, and of
        those that ask the same.

        As many of its tokens count as cached as the plan shares: which of them a replica found is
        chance, and the row's bytes would tell of it.
        """
        request = self._requests.pop(found.request.index)
        num_planned = self._num_planned.pop(request.index)
        counts = found.error is None and found.prompt_logprobs is None and not found.scores
        found = replace(
            found,
            request=request,
            num_cached_tokens=num_planned if counts else found.num_cached_tokens,
        )
        asked = self._asked.pop(request.index, ())
        if not asked:
            yield found
            return
        for each in fan_out(found, asked):
            yield replace(
                each,
                outputs=() if found.scores else each.outputs,
                scores=found.scores,
                prompt_logprobs=found.prompt_logprobs,
            )

    def fail(self, row: int, error: RowError) -> Iterator[Completion]:
        """Yield the completions of a row that gets no answer."""
        request = self._requests.pop(row)
        del self._num_planned[row]
        yield from fan_out(Completion(request, error=error), self._asked.pop(row, ()))

    def refuse(self, request: Request, error: RowError) -> Iterator[Completion]:
        """Yield the completions of a request that is not in the run order."""
        yield from fan_out(Completion(request, error=error), self._asked.pop(request.index, ()))
