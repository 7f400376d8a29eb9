"""Parts of a plan: rows that run one after another in one pool.

`PlanPart` holds the rows with every decision of the whole plan that affects their bytes. It can be
pickled and sent to a replica; shared prompt tokens are sent once. `PlannedPart` adds everything
that depends on the neighbors in this pool: cache hits, blocks kept for the next row, block keys,
and positions of recurrent states. A row of the plan that runs elsewhere finds nothing here, and
nothing is kept for it. Cache hits change no bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.planning.duplicates import Duplicates
from pagedrun.paged.planning.prefix_reuse import BlockKeys, StatePoints
from pagedrun.paged.values.planned_request import BranchPoint, PlannedRequest, PlannedSharing
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class PlanPart:
    """Some rows of a window's plan, in any order; can be pickled, with each shared token once.

    Every number that the bytes of a row depend on is that of the whole plan. `PlannedPart` adds the
    numbers that depend on the rows before and after.

    window: the window's number. places: [num_rows] int64, positions in the window's run order.
    requests: clamped to the limits, each with its index in the input. num_common_tokens: [num_rows]
    int32, tokens in common with the previous row of this part; 0 for the first, unless the whole
    plan begins with it. num_shared_tokens, num_read_once_tokens, num_stored_tokens: [num_rows]
    int64, and groups: [num_rows] int32, see `PlannedRequest`. begun: by index, the first tokens of
    an answer, from an earlier run. min_state_tokens: tokens that a state must save, None without
    recurrent layers.
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
        """Return some of the rows in another order, each at most once.

        rows: [num_rows] int64, row numbers in this part. The first one has no previous row.
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


@dataclass(frozen=True, slots=True, eq=False)
class PackedRequests:
    """Requests as columns, with each shared prompt token once.

    indices: [num_requests] int64. params: of each. others: the fields behind these, () for the
    default ones. common: [num_requests] int32, leading tokens in common with the previous prompt.
    own: [num_tokens] int32, the other tokens, concatenated. num_own: [num_requests] int64.
    """

    indices: Int64s
    params: tuple[SamplingParams, ...]
    others: tuple[tuple[Any, ...], ...]
    common: Int32s
    own: Int32s
    num_own: Int64s

    @classmethod
    def of(cls, requests: Seq[Request], common: Int32s) -> "PackedRequests":
        """Pack requests. common: [num_requests] int32, a lower bound of the tokens in common with
        the previous prompt; that of the first is ignored."""
        taken = common.copy()
        taken[:1] = 0
        own = [
            request.prompt_token_ids[count:]
            for request, count in zip(requests, taken.tolist(), strict=True)
        ]
        others = map(_others, requests)
        return cls(
            np.array([request.index for request in requests], dtype=np.int64),
            tuple(request.params for request in requests),
            tuple(() if each == _USUAL else each for each in others),
            taken,
            np.array([token for tokens in own for token in tokens], dtype=np.int32),
            np.array([len(tokens) for tokens in own], dtype=np.int64),
        )

    def requests(self) -> tuple[Request, ...]:
        """Return the unpacked requests."""
        tokens, found = self.own.tolist(), []
        prompt: tuple[int, ...] = ()
        end = 0
        columns = zip(
            self.indices.tolist(),
            self.params,
            self.others,
            self.common.tolist(),
            self.num_own.tolist(),
            strict=True,
        )
        for index, params, others, num_common, num_own in columns:
            begin, end = end, end + num_own
            prompt = (*prompt[:num_common], *tokens[begin:end])
            words, continuations, priority, texts = others or _USUAL
            request = Request(index, prompt, params, words, continuations, priority, texts=texts)
            found.append(request)
        return tuple(found)


def _unpacked(packed: PackedRequests, values: dict[str, Any]) -> PlanPart:
    return PlanPart(requests=packed.requests(), **values)


def _of(
    requests: Iterable[Request], begun: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    if not begun:
        return {}
    return {each.index: begun[each.index] for each in requests if each.index in begun}


@dataclass(frozen=True, slots=True)
class PlanTail:
    """State passed from one plan to the next.

    window: the window's number. last_request: the last request in run order, whose prefix may still
    be cached. state_points: positions on its path with kept states.
    """

    window: int
    last_request: Request | None
    state_points: BranchPoint | None = None


class EarlierAnswer(Protocol):
    """An answer of an earlier run to the same question, whole or the first tokens of one."""

    @property
    def is_whole(self) -> bool:
        """Return whether a new run would give exactly this answer."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first tokens of the answer."""

    def completion(self, request: Request) -> Completion:
        """Return a whole answer as the completion of `request`."""


class EarlierAnswers(Protocol):
    """Answers of an earlier run of the same model, by their questions."""

    def find(self, request: Request, num_read_once_tokens: int) -> EarlierAnswer | None:
        """Return the answer to a request that reads so many tokens together with other rows."""

    def tokens_at(self, index: int) -> tuple[int, ...]:
        """Return the tokens of the first answer of the row with an index, whatever its question;
        none without one."""


class PlannedPart:
    """A part in its run order; iterate it for `PlannedRequest`s, made one by one.

    `num_common_tokens` [num_rows] int32 are those that each row has in common with the one before
    it, the first with the last row of the part before. `states` are None without recurrent layers.
    `duplicates`, `too_large` (requests larger than the pool) and `copied` (requests answered by an
    earlier run) are those of a whole window, see `Plan`, and empty for a part of one.
    """

    def __init__(
        self, part: PlanPart, after: PlanTail | None = None, *, has_next: bool = False
    ) -> None:
        """Plan the rows of a part.

        after: the tail of the previous part in the same pool. has_next: another part follows, for
        which the last row's prefix is kept.
        """
        self.rows = part
        self.duplicates = Duplicates(())
        self.too_large: Seq[Request] = ()
        self.copied: Seq[tuple[Request, EarlierAnswer]] = ()
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
        # All slow work is done here, and none while the plan is iterated.
        self._block_keys = self._keys()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of the rows."""
        return int(self.num_tokens.sum())

    @property
    def end(self) -> PlanTail:
        """Tail of this part, for the next one in the same pool."""
        last = self.rows.requests[-1] if len(self) else None
        return PlanTail(self.rows.window, last, None if self.states is None else self.states.open)

    @property
    def num_blocks_found(self) -> Int64s:
        """[num_rows] int64, blocks of each row left in the pool by the previous one."""
        found = (self.num_common_tokens // self.rows.block_size).astype(np.int64)
        return found if self.rows.prefix_caching else np.zeros_like(found)

    @cached_property
    def sharing(self) -> PlannedSharing:
        """Tokens and blocks that the rows of the part have in common, with each other and with the
        part before."""
        size, caching = self.rows.block_size, self.rows.prefix_caching
        common = int(np.minimum(self.num_common_tokens, self.num_tokens - 1).sum())
        found = self.num_common_tokens.astype(np.int64) // size
        kept = np.append(found[1:], 0)[: len(found)]
        return PlannedSharing(
            achievable_hit_tokens=common * caching,
            block_hit_tokens=self.num_block_hit_tokens,
            common_tokens=common,
            num_shared_blocks=int(np.maximum(kept - found, 0).sum()) * caching,
            num_duplicates=0,
        )

    @property
    def num_hit_tokens(self) -> Int64s:
        """[num_rows] int64, prompt tokens of each row that whole cached blocks save; with recurrent
        layers those before its first state."""
        size = self.rows.block_size
        if self.states is not None:
            return np.array(self.states.begins, np.int64) * size
        hits = self.num_common_tokens.astype(np.int64) // size * size
        return np.minimum(hits, self.num_tokens - 1) * self.rows.prefix_caching

    @property
    def num_block_hit_tokens(self) -> int:
        """Prompt tokens that whole cached blocks save."""
        return int(self.num_hit_tokens.sum())

    def __iter__(self) -> Iterator[PlannedRequest]:
        part = self.rows
        rows = zip(part.requests, self._block_keys, strict=True)
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

    def _keep_blocks(self, *, has_next: bool) -> Int64s:
        """Return the leading blocks of each row that the next one needs, [num_rows] int64."""
        size = self.rows.block_size
        keep = np.append(self.num_common_tokens[1:] // size, 0)[: len(self)].astype(np.int64)
        if has_next:
            keep[-1:] = self.num_tokens[-1:] // size
        return keep * self.rows.prefix_caching

    def _keys(self) -> BlockKeys:
        """Return the keys of each row's blocks; only blocks shared with other rows get one."""
        part, found = self.rows, self.num_blocks_found
        shared = part.num_shared_tokens // part.block_size * part.prefix_caching
        num_keys = np.maximum(np.maximum(shared, found), self.num_keep_blocks)
        found[:1] = 0  # of a row that is not in the part
        prompts = [request.prompt_token_ids for request in part.requests]
        return BlockKeys(prompts, num_keys, found, part.block_size)

    def _states(self, before: BranchPoint | None, has_next: bool) -> StatePoints | None:
        part = self.rows
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

    def _state_limits(self) -> Int64s:
        """Return the tokens behind which each row can start at the latest, [num_rows] int64: at
        least one token is computed, and all whose log-probabilities are requested."""
        asked = (request.params.prompt_logprobs is not None for request in self.rows.requests)
        scored = np.fromiter(asked, dtype=np.bool_, count=len(self))
        return (self.num_tokens - 1) * ~scored

    def _state_points(self, number: int, request: Request) -> BranchPoint | None:
        if self.states is None:
            return None
        if request.params.num_drawn_samples > 1:
            return self.states.left_by_samples(number, len(request.prompt_token_ids))
        return self.states.left[number]


def _branches(num_keep_blocks: Int64s) -> list[BranchPoint]:
    """Return the points at which later rows leave each row's path, in run order.

    num_keep_blocks: [num_rows] int64, blocks that the next row has in common. A later row has the
    minimum over all rows in between.
    """
    found: list[BranchPoint] = []
    following: BranchPoint | None = None
    for count in reversed(num_keep_blocks.tolist()):
        while following is not None and following.num_blocks >= count:
            following = following.next
        following = BranchPoint(count, following)
        found.append(following)
    return found[::-1]


_others = attrgetter("bad_words_ids", "continuations", "priority", "texts")
_USUAL = _others(Request(0, (), SamplingParams()))
