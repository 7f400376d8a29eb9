"""Duplicates: requests with equal answers, computed once; and collection of finished samples.

`Duplicates` finds them before the run. `OutputCollector` collects the samples of each request, and
gives its completion to all equal requests.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Completion, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.paged.values.vote import Ballot


class Duplicates:
    """Groups of equal requests: the `distinct` ones, and in `asked`, by the index of a distinct
    one, all requests of its group, wherever these are more or other than it.

    Two requests are equal if their tokens are and both are greedy with the same limits and stops;
    the samples of a greedy request are one. Sampled requests are never equal, even with one seed:
    their random stream is keyed by the row's index too, so that repeating a row gives another draw.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self.distinct: list[Request] = []
        self.asked: dict[int, list[Request]] = {}
        first: dict[Request, Request] = {}
        determining = lru_cache(maxsize=1024)(_determining)  # many rows have the same parameters
        for request in requests:
            if not request.params.is_greedy:
                self.distinct.append(request)
                continue
            asks = replace(request, index=0, priority=0, params=determining(request.params))
            found = first.setdefault(asks, request)
            if found is not request:
                self.asked.setdefault(found.index, [found]).append(request)
                continue
            params = request.params
            if params.n > 1 and not params.has_beams and not request.continuations:
                self.asked[request.index] = [request]
                request = replace(request, params=replace(params, n=1))
            self.distinct.append(request)

    def without(self, done: Container[int]) -> set[int]:
        """Remove requests that are answered already, by index; return the `distinct` ones without
        any request left."""
        finished: set[int] = set()
        for request in self.distinct:
            members = self.asked.get(request.index, [request])
            left = [member for member in members if member.index not in done]
            if not left:
                finished.add(request.index)
                self.asked.pop(request.index, None)
            elif len(left) < len(members):
                self.asked[request.index] = left
        return finished

    @property
    def num_duplicates(self) -> int:
        """Requests that are answered without being computed."""
        return sum(len(asked) - 1 for asked in self.asked.values())

    def num_copied_tokens(self, without: Iterable[Request] = ()) -> int:
        """Return the prompt tokens of all duplicates, except those of some requests."""
        left_out = {request.index for request in without}
        return sum(
            (len(asked) - 1) * len(asked[0].prompt_token_ids)
            for index, asked in self.asked.items()
            if index not in left_out
        )


def fan_out(completion: Completion, asked: Sequence[Request]) -> Iterator[Completion]:
    """Yield the completion of each of the requests `asked`, of which the first was computed.

    Without `asked` that is the one of its own request. The prompt of a duplicate counts as cached
    to its last token, since nothing of it is computed.
    """
    for position, request in enumerate(asked or (completion.request,)):
        outputs, params = completion.outputs, request.params
        if request is completion.request and params.vote is None and len(outputs) in (0, params.n):
            yield completion
            continue
        if outputs and params.is_greedy and len(outputs) != params.n:
            outputs = tuple(replace(outputs[0], index=i) for i in range(params.n))
        vote = None
        if outputs and params.vote is not None:
            vote = Ballot.decided(params.vote, params.n, (output.text for output in outputs))
            outputs = outputs[: vote.drawn]
        num_cached = completion.num_cached_tokens
        if position and completion.error is None:
            num_cached = len(request.prompt_token_ids)
        num_computed = 0 if position else _num_tokens(completion.outputs)
        yield replace(
            completion,
            request=request,
            outputs=outputs,
            num_cached_tokens=num_cached,
            is_duplicate=position > 0,
            num_copied_tokens=_num_tokens(outputs) - num_computed,
            vote=vote,
        )


def _determining(params: SamplingParams) -> SamplingParams:
    """Return greedy parameters without the fields that a greedy choice ignores.

    Samples of one request are equal; its beams are not.
    """
    determining: dict[str, Any] = {
        "n": params.n if params.has_beams else 1,
        "seed": _PLAIN.seed,
        "top_p": _PLAIN.top_p,
        "top_k": _PLAIN.top_k,
        "min_p": _PLAIN.min_p,
    }
    changes = {name: to for name, to in determining.items() if getattr(params, name) != to}
    return replace(params, **changes) if changes else params


_PLAIN = SamplingParams()


def _num_tokens(outputs: Sequence[SampleOutput]) -> int:
    return sum(len(output.token_ids) for output in outputs)


class OutputCollector:
    """Collects the samples of each request until it has all.

    Of a request with a vote, the smallest number of samples that may decide the vote is drawn at a
    time, so that none is drawn in vain.
    """

    def __init__(self) -> None:
        self._outputs: dict[int, list[SampleOutput]] = {}
        self._asked: dict[int, Sequence[Request]] = {}
        self._planned: dict[int, PlannedRequest] = {}
        self._voting: dict[int, PlannedRequest] = {}  # with the samples that are being drawn
        self._num_cached: dict[int, int] = {}  # of these, from the first samples

    def expect(self, asked: Mapping[int, Sequence[Request]]) -> None:
        """Add groups of equal requests, by the index of the first; see `Duplicates`."""
        self._asked |= asked

    def begin(self, planned: PlannedRequest) -> PlannedRequest:
        """Return a request with the samples to draw first."""
        params = planned.request.params
        self._planned[planned.request.index] = planned
        if params.vote is None:
            return planned
        first = replace(planned, num_samples=Ballot(params.n).num_needed)
        self._voting[planned.request.index] = first
        return first

    def collect(
        self, request: Request, output: SampleOutput, num_cached_tokens: int
    ) -> tuple[Sequence[Completion], PlannedRequest | None]:
        """Add a finished sample; return the completions when it is its request's last one.

        If it is the last of the current samples and the vote is open, return the samples to draw
        next.
        """
        index = request.index
        outputs = self._outputs.setdefault(index, [])
        outputs.append(output)
        voting = self._voting.get(index)
        if voting is None:
            if len(outputs) < request.params.n:
                return (), None
        else:
            num_cached_tokens = self._num_cached.setdefault(index, num_cached_tokens)
            if len(outputs) <= voting.samples[-1]:
                return (), None
            if more := self._more(voting, outputs):
                return (), more
        planned = self._planned[index]
        self._forget(index)
        outputs.sort(key=lambda each: each.index)
        completion = Completion(
            request,
            tuple(outputs),
            num_cached_tokens,
            num_read_once_tokens=planned.num_read_once_tokens,
            num_begun_tokens=len(planned.begun_token_ids),
        )
        return tuple(self._given(completion)), None

    def fail(self, request: Request, error: RowError) -> Iterator[Completion]:
        """Yield the completions of a request without an answer; its samples are dropped."""
        self._forget(request.index)
        yield from self._given(Completion(request, error=error))

    def _more(self, voting: PlannedRequest, outputs: list[SampleOutput]) -> PlannedRequest | None:
        """Return the samples needed to decide the vote, None if it is decided."""
        params = voting.request.params
        assert params.vote is not None
        texts = [output.text for output in sorted(outputs, key=lambda each: each.index)]
        needed = Ballot.of(params.vote, params.n, texts).num_needed
        if not needed:
            return None
        more = replace(voting, first_sample=len(outputs), num_samples=needed)
        self._voting[voting.request.index] = more
        return more

    def _forget(self, index: int) -> None:
        self._outputs.pop(index, None)
        self._planned.pop(index, None)
        self._voting.pop(index, None)
        self._num_cached.pop(index, None)

    def _given(self, completion: Completion) -> Iterator[Completion]:
        return fan_out(completion, self._asked.pop(completion.request.index, ()))
