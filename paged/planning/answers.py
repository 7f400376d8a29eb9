"""Answers: finished samples become completions, also for requests that asked the same."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from pagedrun.paged.planning.duplicates import fan_out
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Completion, Request, SampleOutput
from pagedrun.paged.values.sampling.ballot import Ballot


class Answers:
    """Keeps the samples of a request until it has all, and who else waits for them.

    Of a request whose samples vote, as many are drawn at a time as may decide the vote at the
    soonest, so that none is drawn in vain.
    """

    def __init__(self) -> None:
        self._outputs: dict[int, list[SampleOutput]] = {}
        self._asked: dict[int, Seq[Request]] = {}
        self._planned: dict[int, PlannedRequest] = {}
        self._voting: dict[int, PlannedRequest] = {}  # with the samples that are being drawn
        self._num_cached: dict[int, int] = {}  # of these, by what was drawn first

    def expect(self, asked: Mapping[int, Seq[Request]]) -> None:
        """Take note of requests, by the index of the first, that ask the same; see `Duplicates`."""
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
    ) -> tuple[Seq[Completion], PlannedRequest | None]:
        """Keep a finished sample; return the completions when it is its request's last one.

        If it is the last one that was to be drawn, and the vote is open, return what to draw next.
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
        """Yield the completions of a request that gets no answer; what it has is dropped."""
        self._forget(request.index)
        yield from self._given(Completion(request, error=error))

    def _more(self, voting: PlannedRequest, outputs: list[SampleOutput]) -> PlannedRequest | None:
        """Return the samples without which the vote stays open, None if it is decided."""
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
