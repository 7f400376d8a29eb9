"""Plan: the order in which the requests of a window run, and what sharing prefixes can save.

The order is a depth-first walk of the prompts' prefix tree: rows that share a prefix become
neighbours, so each prefix is computed once and used while it is there, and what is needed again is
known to the block: it is what the next row has in common with this one. `run_order` departs from it
where rows have priorities, or are drawn.
"""

from collections.abc import Container, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.read_once import ON_GPU, ReadOnce
from pagedrun.paged.planning.block_names import BlockNames
from pagedrun.paged.planning.duplicates import Duplicates
from pagedrun.paged.planning.earlier_answers import EarlierAnswer, EarlierAnswers
from pagedrun.paged.planning.prefix_tree import PrefixTree
from pagedrun.paged.planning.request_tree import request_tree
from pagedrun.paged.planning.run_order import Draws, run_order
from pagedrun.paged.planning.state_points import StatePoints
from pagedrun.paged.planning.stored_tokens import NO_ROOM, StoreRoom, tokens_to_store
from pagedrun.paged.values.branch_point import BranchPoint
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.planned_sharing import PlannedSharing
from pagedrun.paged.values.request import Completion, Request


@dataclass(frozen=True, slots=True)
class PlanEnd:
    """What the plan of the next window needs to know of the one before: its number, the request
    that runs last, whose prefix may still be there, and where on that states are kept."""

    window: int
    last_request: Request | None
    state_points: BranchPoint | None = None


class Plan:
    """A window of requests in run order; iterate it for `PlannedRequest`s, made one by one.

    What an earlier run has answered is `copied`, and does not run.

    `sharing` counts what they have in common. `too_large` are the requests that would not fit into
    a pool of `max_blocks`.
    """

    def __init__(
        self,
        requests: Seq[Request],
        block_size: int,
        *,
        prefix_caching: bool,
        max_blocks: int | None = None,
        after: PlanEnd | None = None,
        has_next: bool = False,
        read_once: ReadOnce = ON_GPU,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        store_room: StoreRoom = NO_ROOM,
        min_state_tokens: int | None = None,
        sample_seed: int | None = None,
    ) -> None:
        """Plan requests in the order of their index.

        after: the end of the window before, whose last prefix may still be there. has_next:
        whether another window follows, for which the last row's prefix is kept. read_once: when
        a prefix is read for all its rows together. done: indices of
        requests that are answered already: they do not run, but still count where it matters what
        the file holds, so that the others get the bytes that they would have got. earlier: what may
        answer others in the same way, or tell how their answers begin.
        store_room: what a prefix store has room for.
        min_state_tokens: what a state of recurrent layers has to spare to be kept, None for a model
        without such layers. sample_seed: lets rows run in an order that is drawn with it, so that
        those done at any moment are a fair sample; None for the order that shares most.
        """
        self.duplicates = Duplicates(requests)
        self._requests = self.duplicates.distinct
        self._prefix_caching = prefix_caching
        self._window: int = 0 if after is None else after.window + 1
        last = after.last_request if after is not None else None
        self._read_once = read_once
        draws = None if sample_seed is None else Draws.of(self._requests, sample_seed)
        max_new_tokens = self._values("max_num_drawn")
        weights = max_new_tokens if draws is None else draws.values
        tree = request_tree(self._requests, block_size, last, read_once, weights)
        needed = self._blocks_at_once(tree, block_size)
        fits = needed <= (needed.max(initial=0) if max_blocks is None else max_blocks)
        self._copied: list[tuple[Request, EarlierAnswer]] = []
        self._begun: dict[int, tuple[int, ...]] = {}
        if earlier is not None:
            self._take(earlier, tree, done)
            known = {request.index for request, _ in self._copied}
            done = known.union(each.index for each in requests if each.index in done)
        finished = self.duplicates.without(done)
        is_left = np.array([self._requests[row].index not in finished for row in tree.order], bool)
        self.too_large = [self._requests[row] for row in tree.order[~fits & is_left]]
        self.tree = run_order(tree, fits & is_left, self._priorities(), draws, max_new_tokens)
        self.states: StatePoints | None = None
        if min_state_tokens is not None and prefix_caching:
            self.states = StatePoints.of(
                self.tree.common,
                self._state_limits(),
                block_size,
                before=None if after is None else after.state_points,
                has_next=has_next,
                min_tokens=min_state_tokens,
            )
        copied = self.duplicates.num_copied_tokens(without=self.too_large)
        common = self.tree.num_common_tokens
        self.sharing = PlannedSharing(
            achievable_hit_tokens=copied + common * prefix_caching,
            block_hit_tokens=copied + self._num_block_hit_tokens * prefix_caching,
            common_tokens=copied + common,
            num_shared_blocks=self.tree.num_shared_blocks * prefix_caching,
            num_duplicates=self.duplicates.num_duplicates,
        )
        # Nothing that takes time for many rows is left to whoever iterates.
        self._to_store = tokens_to_store(self.tree.common, store_room)
        self._num_shared_tokens = np.where(
            self.num_samples > 1, self.tree.num_tokens, self.tree.num_shared_tokens
        )
        self._num_keep_blocks = self._keep_blocks(has_next=has_next)
        self._block_names = self._named_blocks()
        self._branches = _branches(self._num_keep_blocks)

    def __len__(self) -> int:
        return len(self.tree)

    @property
    def end(self) -> PlanEnd:
        """Where this plan ends, for the one of the next window."""
        last = self._requests[self.tree.order[-1]] if len(self) else None
        return PlanEnd(self._window, last, None if self.states is None else self.states.open)

    @property
    def num_copied(self) -> int:
        """Requests that an earlier run has answered."""
        return len(self._copied)

    def copied(self) -> Iterator[Completion]:
        """Yield what an earlier run has answered to these, read one by one."""
        return (answer.completion(request) for request, answer in self._copied)

    def request(self, row: int) -> Request:
        """Return the request with this number in the tree."""
        return self._requests[row]

    @property
    def max_tokens(self) -> NDArray[np.int64]:
        """[num_rows] int64, the longest answer that each may have, in run order."""
        return self._column("max_num_drawn", self.tree.order)

    @property
    def max_num_generated(self) -> int:
        """Tokens that all answers together have at most."""
        return sum(self._requests[row].max_num_generated for row in self.tree.order.tolist())

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """[num_rows] int64, sequences that each may come to, in run order."""
        return self._column("num_sequences", self.tree.order)

    @property
    def num_beams(self) -> NDArray[np.int64]:
        """[num_rows] int64, beams that run together for each, in run order; 1 without a search."""
        return self._column("beam_width", self.tree.order)

    @property
    def branch_points(self) -> Seq[BranchPoint]:
        """Where later rows leave the path of each, in run order."""
        return self._branches

    @property
    def num_blocks_at_full_length(self) -> NDArray[np.int64]:
        """[num_rows] int64, blocks of each row's prompt and longest answer, in run order."""
        return self._full_blocks(self.tree, self.tree.block_size)

    @property
    def num_blocks_at_once(self) -> NDArray[np.int64]:
        """[num_rows] int64, `Request.num_blocks_at_once` of each, in run order."""
        return self._blocks_at_once(self.tree, self.tree.block_size)

    @property
    def num_blocks_found(self) -> NDArray[np.int64]:
        """[num_rows] int64, blocks of each that the one before has left, in run order."""
        found = self.tree.num_hit_blocks.astype(np.int64)
        return found if self._prefix_caching else np.zeros_like(found)

    @property
    def num_private_blocks(self) -> NDArray[np.int64]:
        """[num_rows] int64, blocks that each needs for itself at full length, in run order."""
        full, prompt = self.num_blocks_at_full_length, self.tree.num_tokens // self.tree.block_size
        samples = self.num_samples
        return (full - prompt) * samples + prompt - self.num_blocks_found

    def num_blocks_needed(self, max_num_seqs: int) -> int:
        """Return how many blocks let `max_num_seqs` of the largest requests run at once while
        every prefix that is needed again stays cached. An upper bound: fewer may do."""
        private = np.sort(self.num_private_blocks)[::-1][:max_num_seqs]
        hits = np.sort(self.tree.num_hit_blocks)[::-1][: max_num_seqs + 1]
        shared = min(self.sharing.num_shared_blocks, int(hits.sum())) if self._prefix_caching else 0
        return shared + int(private.sum()) + len(private)

    def __iter__(self) -> Iterator[PlannedRequest]:
        tree = self.tree
        rows = zip(tree.order.tolist(), self._block_names, strict=True)
        for place, (row, block_keys) in enumerate(rows):
            request = self._requests[row]
            yield PlannedRequest(
                request,
                place,
                block_keys,
                num_shared_tokens=int(self._num_shared_tokens[place]),
                num_read_once_tokens=self._num_read_once(tree, place),
                num_keep_blocks=int(self._num_keep_blocks[place]),
                group=(self._window, int(tree.group[place])),
                num_common_tokens=int(tree.common[place]),
                num_stored_tokens=int(self._to_store[place]),
                branch_point=self._branches[place],
                num_state_blocks=0 if self.states is None else self.states.begins[place],
                state_points=self._state_points(place, request),
                begun_token_ids=self._begun.get(request.index, ()),
            )

    def _take(self, earlier: EarlierAnswers, tree: PrefixTree, done: Container[int]) -> None:
        """Take note of what an earlier run has answered, and of how it has begun other answers."""
        for place, row in enumerate(tree.order.tolist()):
            request, num_read_once = self._requests[row], self._num_read_once(tree, place)
            for member in self.duplicates.asked.get(request.index, [request]):
                found = None if member.index in done else earlier.find(member, num_read_once)
                if found is not None and found.is_whole:
                    self._copied.append((member, found))
                elif found is not None:
                    self._begun[request.index] = found.token_ids

    def _num_read_once(self, tree: PrefixTree, place: int) -> int:
        """Return how many tokens the row at a place reads together with others, or its samples."""
        request = self._requests[tree.order[place]]
        if self._reads_samples_once(request):
            return len(request.prompt_token_ids)
        return int(tree.num_read_once_tokens[place])

    def _keep_blocks(self, *, has_next: bool) -> NDArray[np.int64]:
        """Return how many leading blocks of each row the one after it needs again, [num_rows]."""
        keep = self.tree.num_keep_blocks.astype(np.int64)
        if has_next:
            keep[-1:] = self.tree.num_tokens[-1:] // self.tree.block_size
        return keep * self._prefix_caching

    def _named_blocks(self) -> BlockNames:
        """Return the keys of each row's blocks; only what somebody else has needs a name."""
        tree, found = self.tree, self.num_blocks_found
        shared = self._num_shared_tokens // tree.block_size * self._prefix_caching
        num_keys = np.maximum(np.maximum(shared, found), self._num_keep_blocks)
        found[:1] = 0  # of a row in another window
        prompts = [self._requests[row].prompt_token_ids for row in tree.order.tolist()]
        return BlockNames(prompts, num_keys, found, tree.block_size)

    @property
    def _num_block_hit_tokens(self) -> int:
        """Prompt tokens that whole cached blocks spare, where states are needed with these."""
        if self.states is None:
            return self.tree.num_block_hit_tokens
        return sum(self.states.begins) * self.tree.block_size

    def _state_points(self, place: int, request: Request) -> BranchPoint | None:
        if self.states is None:
            return None
        if request.params.num_drawn_samples > 1:
            return self.states.left_by_samples(place, len(request.prompt_token_ids))
        return self.states.left[place]

    def _state_limits(self) -> NDArray[np.int64]:
        """Return behind how many tokens each row can begin, in run order: there is one to compute,
        and all that are to be scored."""
        requests = (self._requests[row] for row in self.tree.order.tolist())
        is_scored = (request.params.prompt_logprobs is not None for request in requests)
        scored = np.fromiter(is_scored, dtype=np.bool_, count=len(self.tree))
        return (self.tree.num_tokens - 1) * ~scored

    def _reads_samples_once(self, request: Request) -> bool:
        num_samples = request.params.num_sequences
        work = num_samples * len(request.prompt_token_ids)
        rule = self._read_once
        return num_samples >= rule.min_rows and work >= rule.min_work

    def _full_blocks(self, tree: PrefixTree, size: int) -> NDArray[np.int64]:
        """Return the blocks of each row's prompt and longest answer, but its last token."""
        num_tokens = tree.num_tokens + self._column("max_num_drawn", tree.order) - 1
        return -(-num_tokens // size)

    def _blocks_at_once(self, tree: PrefixTree, size: int) -> NDArray[np.int64]:
        """Return `Request.num_blocks_at_once` of each row."""
        full, prompt = self._full_blocks(tree, size), tree.num_tokens // size
        return (full - prompt) * self._column("beam_width", tree.order) + prompt

    def _column(self, name: str, order: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._values(name)[order]

    def _values(self, name: str) -> NDArray[np.int64]:
        """Return a parameter of each row, [num_rows] int64, by its number."""
        values = (getattr(request.params, name) for request in self._requests)
        return np.fromiter(values, dtype=np.int64, count=len(self._requests))

    def _priorities(self) -> NDArray[np.int64]:
        """Return the priority of each row, [num_rows] int64, by its number: of those that ask the
        same, the first to run."""
        own = (request.priority for request in self._requests)
        least = np.fromiter(own, dtype=np.int64, count=len(self._requests))
        if asked := self.duplicates.asked:
            for row, request in enumerate(self._requests):
                if request.index in asked:
                    least[row] = min(each.priority for each in asked[request.index])
        return least


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
