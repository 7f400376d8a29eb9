"""Planner: plans windows of requests for an engine, a forecast or a replica.

Every decision that affects the bytes of a row is made here, from all rows of the window, and
travels with the row. A run, a forecast and a replica that get the same rows therefore plan the
same requests. `PartPlanner` plans the parts of a window that one replica runs.
"""

import time
from collections.abc import Container, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from pagedrun.kernels.token_rows import walk_tree
from pagedrun.paged.metrics.snapshot import MAX_PREFIXES, PrefixNodes
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.plan_part import EarlierAnswers, PlannedPart, PlanPart, PlanTail
from pagedrun.paged.planning.prefix_tree import MIN_GROUP_ROWS, TreeNodes
from pagedrun.paged.planning.windows import PlannedWindow
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.request import Completion, Request


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of every request: tokens of prompt and answer, vocabulary size and, where each beam
    takes memory that cannot be shared, the number of beams."""

    max_model_len: int
    vocab_size: int
    max_beam_width: int | None = None

    def refuse(self, request: Request) -> None:
        """Raise `RowError` for a request with too many beams."""
        width, most = request.params.beam_width, self.max_beam_width
        if most is not None and width > most:
            raise RowError(
                "kv_cache_too_small",
                f"the row has {width} beams, each with a state of recurrent layers, but the "
                f"memory suffices for {most}; lower {option('beam_width')}",
                param="beam_width",
            )


class Planner:
    """Plans one window after the other."""

    def __init__(
        self,
        rules: PlanRules,
        limits: RequestLimits,
        *,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        sample_seed: int | None = None,
        reserved_len: int | None = None,
    ) -> None:
        """done, earlier, sample_seed: see `Plan`. reserved_len: `max_model_len` if it was given."""
        self._rules = rules
        self._limits = limits
        self._done = done
        self._earlier = earlier
        self._sample_seed = sample_seed
        self._reserved_len = reserved_len
        self._after: PlanTail | None = None

    def window(self, requests: Seq[Request | Completion], *, has_next: bool) -> PlannedWindow[Plan]:
        """Plan the next window; `has_next`: another one follows.

        A completion in place of a request holds the reason of its refusal.
        """
        began = time.perf_counter()
        accepted, refused = self._accept(requests)
        plan = Plan(
            accepted,
            self._rules,
            after=self._after,
            has_next=has_next,
            done=self._done,
            earlier=self._earlier,
            sample_seed=self._sample_seed,
        )
        self._after = plan.end
        prefixes = prefix_nodes(plan)
        return PlannedWindow(plan, refused, prefixes, time.perf_counter() - began)

    def windows(self, more: Iterable[Seq[Request | Completion]]) -> Iterator[PlannedWindow[Plan]]:
        """Plan the windows after the first, each on demand."""

        def plan_next(requests: Seq[Request | Completion]) -> PlannedWindow[Plan]:
            return self.window(requests, has_next=True)

        return map(plan_next, more)  # unlike a loop, holds no window while the next one is read

    def reserved_len(self, requests: Seq[Request | Completion]) -> int:
        """Return the tokens per row that an engine with one length for all rows would reserve."""
        limit = self._limits.max_model_len
        lengths = (
            (len(request.prompt_token_ids), request.params.max_tokens)
            for request in requests
            if isinstance(request, Request)
        )
        totals = (min(prompt + answer, limit) for prompt, answer in lengths if prompt < limit)
        return self._reserved_len or max(totals, default=1)

    def _accept(
        self, requests: Seq[Request | Completion]
    ) -> tuple[list[Request], list[Completion]]:
        limits = self._limits
        accepted: list[Request] = []
        refused: list[Completion] = []
        for request in requests:
            if isinstance(request, Completion):
                refused.append(request)
                continue
            try:
                limits.refuse(request)
                accepted.append(request.fitted(limits.max_model_len, limits.vocab_size))
            except RowError as error:
                if request.index not in self._done:
                    refused.append(Completion(request, error=error))
        return accepted, refused


class PartPlanner:
    """Plans one part after the other, in the order in which they run in one pool.

    Any part may follow any other one: of another window, of rows earlier in the plan, of single
    rows. The cache hits of its first row are the tokens in common with the last row of the part
    before, whose prompt is kept for it.
    """

    def __init__(self) -> None:
        self._after: PlanTail | None = None

    def window(self, part: PlanPart, *, has_next: bool = True) -> PlannedWindow[PlannedPart]:
        """Plan the next part; `has_next`: another one may follow."""
        began = time.perf_counter()
        plan = PlannedPart(part, self._after, has_next=has_next)
        if len(plan):
            self._after = plan.end
        prefixes = part_nodes(part)
        return PlannedWindow(plan, (), prefixes, time.perf_counter() - began)


def prefix_nodes(plan: Plan) -> PrefixNodes:
    """Return the `MAX_PREFIXES` nodes with the largest savings; `row` is an index of the input."""
    shared = _best(plan.tree.nodes)
    shared.row[:] = [plan.request(row).index for row in shared.row.tolist()]
    return shared


def part_nodes(part: PlanPart) -> PrefixNodes:
    """Return the nodes of the rows of a part."""
    common = part.num_common_tokens.copy()
    common[:1] = 0
    # Rows of equal weight are walked in the order that they have.
    walk = walk_tree(common, np.zeros(len(part), np.int64), part.block_size, MIN_GROUP_ROWS)
    indices = np.array([request.index for request in part.requests], dtype=np.int64)
    return _best(TreeNodes.of(walk, indices, part.block_size))


def _best(nodes: TreeNodes) -> PrefixNodes:
    order = np.argsort(nodes.end, kind="stable")  # parents are shorter: they come first
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    return PrefixNodes.of(
        parent=place[nodes.parent[order]],
        start=nodes.start[order],
        end=nodes.end[order],
        rows=nodes.num_rows[order],
        row=nodes.row[order],
        saved=nodes.num_tokens_saved[order],
    ).best(MAX_PREFIXES)
