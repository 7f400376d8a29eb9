"""Plan: run order of the requests of a window, and the savings by shared prefixes.

The order is a depth-first walk of the prefix tree of the prompts. Rows that share a prefix are
neighbors, so each prefix is computed once and used while it is in the pool; the blocks needed
again are exactly those that the next row has in common with the current one. `run_order`
departs from this walk where rows have priorities, or are sampled for a deadline.
"""

import sys
from collections.abc import Container, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.partition import ON_GPU, ReadOnce
from pagedrun.paged.planning.duplicates import Duplicates
from pagedrun.paged.planning.plan_part import (
    EarlierAnswer,
    EarlierAnswers,
    PlannedPart,
    PlanPart,
    PlanTail,
)
from pagedrun.paged.planning.prefix_reuse import NO_ROOM, StoreRoom, tokens_to_store
from pagedrun.paged.planning.prefix_tree import PrefixTree, RandomOrder, request_tree, run_order
from pagedrun.paged.values.planned_request import PlannedSharing
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class PlanRules:
    """Settings of an engine that decide how its rows are planned; can be pickled.

    block_size: tokens of a block. max_blocks: capacity of the pool. read_once: when a
    prefix is read for all its rows together. store_room: capacity of the prefix store.
    min_state_tokens: tokens that a state of recurrent layers must save to be kept, None for a model
    without such layers.
    """

    block_size: int
    prefix_caching: bool = True
    max_blocks: int = sys.maxsize
    read_once: ReadOnce = ON_GPU
    store_room: StoreRoom = NO_ROOM
    min_state_tokens: int | None = None


class Plan(PlannedPart):
    """A window of requests in run order; iterate it for `PlannedRequest`s, made one by one.

    `copied` are the requests that an earlier run has answered, and `too_large` those larger than
    the pool; neither run.
    """

    def __init__(
        self,
        requests: Seq[Request],
        rules: PlanRules,
        *,
        after: PlanTail | None = None,
        has_next: bool = False,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        sample_seed: int | None = None,
    ) -> None:
        """Plan requests in the order of their index.

        after: the end of the window before, whose last prefix may still be cached. has_next:
        another window follows, for which the last row's prefix is kept. done: indices of requests
        that are answered already: they do not run, but count where a row's bytes depend on the
        whole file. earlier: answers, or first tokens of answers, of an earlier run. sample_seed:
        seed of a random order in which the rows done at any moment are a fair sample; None for the
        order that shares most.
        """
        block_size = rules.block_size
        self.duplicates = duplicates = Duplicates(requests)
        self._requests = duplicates.distinct
        last = after.last_request if after is not None else None
        self._read_once = read_once = rules.read_once
        draws = None if sample_seed is None else RandomOrder.of(self._requests, sample_seed)
        max_new_tokens = self._values("max_num_drawn")
        weights = max_new_tokens if draws is None else draws.values
        tree = request_tree(self._requests, block_size, last, read_once, weights)
        needed = self._blocks_at_once(tree, block_size)
        fits = needed <= rules.max_blocks
        copied: list[tuple[Request, EarlierAnswer]] = []
        begun: dict[int, tuple[int, ...]] = {}
        drafted: dict[int, tuple[int, ...]] = {}
        if earlier is not None:
            copied, begun, drafted = self._answered(earlier, tree, done)
            known = {request.index for request, _ in copied}
            done = known.union(each.index for each in requests if each.index in done)
        finished = duplicates.without(done)
        is_left = np.array([self._requests[row].index not in finished for row in tree.order], bool)
        too_large = [self._requests[row] for row in tree.order[~fits & is_left]]
        self.tree = run_order(tree, fits & is_left, self._priorities(), draws, max_new_tokens)
        num_samples = self.num_samples
        num_tokens = self.tree.num_tokens
        reads_samples = (num_samples >= read_once.min_rows) & (
            num_samples * num_tokens >= read_once.min_work
        )
        part = PlanPart(
            window=0 if after is None else after.window + 1,
            places=np.arange(len(self.tree)),
            requests=self._in_order(drafted),
            num_common_tokens=self.tree.common,
            num_shared_tokens=np.where(num_samples > 1, num_tokens, self.tree.num_shared_tokens),
            num_read_once_tokens=np.where(
                reads_samples, num_tokens, self.tree.num_read_once_tokens
            ),
            num_stored_tokens=tokens_to_store(self.tree.common, rules.store_room),
            groups=self.tree.group,
            begun=begun,
            block_size=block_size,
            prefix_caching=rules.prefix_caching,
            min_state_tokens=rules.min_state_tokens,
        )
        super().__init__(part, after, has_next=has_next)
        self.duplicates, self.too_large, self.copied = duplicates, too_large, copied

    @cached_property
    def sharing(self) -> PlannedSharing:
        """Tokens and blocks that the requests have in common, duplicates included."""
        caching = self.rows.prefix_caching
        copied = self.duplicates.num_copied_tokens(without=self.too_large)
        common = self.tree.num_common_tokens
        return PlannedSharing(
            achievable_hit_tokens=copied + common * caching,
            block_hit_tokens=copied + self.num_block_hit_tokens,
            common_tokens=copied + common,
            num_shared_blocks=self.tree.num_shared_blocks * caching,
            num_duplicates=self.duplicates.num_duplicates,
        )

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of the rows that run, and of their duplicates."""
        copied = self.duplicates.num_copied_tokens(without=self.too_large)
        return int(self.tree.num_tokens.sum()) + copied

    def part(self, begin: int, end: int) -> PlanPart:
        """Return the rows at the positions [`begin`, `end`) of the run order."""
        return self.part_at(np.arange(begin, end))

    def part_at(self, places: Int64s) -> PlanPart:
        """Return the rows at distinct positions of the run order, [num_rows] int64."""
        return self.rows.at(places)

    def request(self, row: int) -> Request:
        """Return the request with this row number of the tree."""
        return self._requests[row]

    @property
    def max_tokens(self) -> Int64s:
        """[num_rows] int64, the answer limit of each, in run order."""
        return self._column("max_num_drawn", self.tree.order)

    @property
    def max_num_generated(self) -> int:
        """Upper bound of the tokens of all answers together."""
        return sum(self._requests[row].max_num_generated for row in self.tree.order.tolist())

    @property
    def num_samples(self) -> Int64s:
        """[num_rows] int64, sequences that each may need, in run order."""
        return self._column("num_sequences", self.tree.order)

    @property
    def num_beams(self) -> Int64s:
        """[num_rows] int64, beams that run together for each, in run order; 1 without a search."""
        return self._column("beam_width", self.tree.order)

    @property
    def num_blocks_at_full_length(self) -> Int64s:
        """[num_rows] int64, blocks of each row's prompt and longest answer, in run order."""
        return self._full_blocks(self.tree, self.tree.block_size)

    @property
    def num_blocks_at_once(self) -> Int64s:
        """[num_rows] int64, `Request.num_blocks_at_once` of each, in run order."""
        return self._blocks_at_once(self.tree, self.tree.block_size)

    @property
    def num_private_blocks(self) -> Int64s:
        """[num_rows] int64, blocks that only this row needs at full length, in run order."""
        full, prompt = self.num_blocks_at_full_length, self.tree.num_tokens // self.tree.block_size
        samples = self.num_samples
        return (full - prompt) * samples + prompt - self.num_blocks_found

    def num_blocks_needed(self, max_num_seqs: int) -> int:
        """Return the blocks with which `max_num_seqs` of the largest requests run at once while
        every prefix that is needed again stays cached. An upper bound: fewer may suffice."""
        private = np.sort(self.num_private_blocks)[::-1][:max_num_seqs]
        hits = np.sort(self.tree.num_hit_blocks)[::-1][: max_num_seqs + 1]
        shared = min(self.sharing.num_shared_blocks, int(hits.sum()))
        return shared + int(private.sum()) + len(private)

    def _in_order(self, drafted: Mapping[int, tuple[int, ...]]) -> tuple[Request, ...]:
        """Return the requests in run order; drafted: earlier answers of some, by index."""
        requests = tuple(self._requests[row] for row in self.tree.order.tolist())
        if not drafted:
            return requests
        return tuple(
            replace(each, earlier_token_ids=drafted.get(each.index, ())) for each in requests
        )

    def _answered(
        self, earlier: EarlierAnswers, tree: PrefixTree, done: Container[int]
    ) -> tuple[
        list[tuple[Request, EarlierAnswer]], dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]
    ]:
        """Return the requests that an earlier run has answered, and by index the tokens with which
        it began other answers, and those of answers to other questions."""
        copied: list[tuple[Request, EarlierAnswer]] = []
        begun: dict[int, tuple[int, ...]] = {}
        drafted: dict[int, tuple[int, ...]] = {}
        for position, row in enumerate(tree.order.tolist()):
            request, num_read_once = self._requests[row], self._num_read_once(tree, position)
            for member in self.duplicates.asked.get(request.index, [request]):
                found = None if member.index in done else earlier.find(member, num_read_once)
                if found is not None and found.is_whole:
                    copied.append((member, found))
                elif found is not None:
                    begun[request.index] = found.token_ids
                elif member.index not in done and (tokens := earlier.tokens_at(member.index)):
                    drafted[request.index] = tokens
        return copied, begun, drafted

    def _num_read_once(self, tree: PrefixTree, place: int) -> int:
        """Return the tokens that a row reads together with others, or its samples."""
        request = self._requests[tree.order[place]]
        if self._reads_samples_once(request):
            return len(request.prompt_token_ids)
        return int(tree.num_read_once_tokens[place])

    def _reads_samples_once(self, request: Request) -> bool:
        num_samples = request.params.num_sequences
        work = num_samples * len(request.prompt_token_ids)
        rule = self._read_once
        return num_samples >= rule.min_rows and work >= rule.min_work

    def _full_blocks(self, tree: PrefixTree, size: int) -> Int64s:
        """Return the blocks of each row's prompt and longest answer, but its last token."""
        num_tokens = tree.num_tokens + self._column("max_num_drawn", tree.order) - 1
        return -(-num_tokens // size)

    def _blocks_at_once(self, tree: PrefixTree, size: int) -> Int64s:
        """Return `Request.num_blocks_at_once` of each row."""
        full, prompt = self._full_blocks(tree, size), tree.num_tokens // size
        return (full - prompt) * self._column("beam_width", tree.order) + prompt

    def _column(self, name: str, order: Int64s) -> Int64s:
        return self._values(name)[order]

    def _values(self, name: str) -> Int64s:
        """Return a parameter of each row, [num_rows] int64, by row number."""
        values = (getattr(request.params, name) for request in self._requests)
        return np.fromiter(values, dtype=np.int64, count=len(self._requests))

    def _priorities(self) -> Int64s:
        """Return the priority of each row, [num_rows] int64, by row number: of duplicates, the
        first to run."""
        own = (request.priority for request in self._requests)
        least = np.fromiter(own, dtype=np.int64, count=len(self._requests))
        if asked := self.duplicates.asked:
            for row, request in enumerate(self._requests):
                if request.index in asked:
                    least[row] = min(each.priority for each in asked[request.index])
        return least
