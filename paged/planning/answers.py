"""Answers: finished samples become completions, also for requests that asked the same."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq

from pagedrun.paged.planning.duplicates import fan_out
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, Request, SampleOutput


class Answers:
    """Keeps the samples of a request until it has all, and who else waits for them."""

    def __init__(self) -> None:
        self._outputs: dict[int, list[SampleOutput]] = {}
        self._asked: dict[int, Seq[Request]] = {}

    def expect(self, asked: Mapping[int, Seq[Request]]) -> None:
        """Take note of requests, by the index of the first, that ask the same; see `Duplicates`."""
        self._asked |= asked

    def collect(
        self, request: Request, output: SampleOutput, num_cached_tokens: int
    ) -> Iterator[Completion]:
        """Keep a finished sample; yield the completions when it is its request's last one."""
        outputs = self._outputs.setdefault(request.index, [])
        outputs.append(output)
        if len(outputs) == request.params.n:
            del self._outputs[request.index]
            outputs.sort(key=lambda each: each.index)
            yield from self._given(Completion(request, tuple(outputs), num_cached_tokens))

    def fail(self, request: Request, error: RowError) -> Iterator[Completion]:
        """Yield the completions of a request that gets no answer; what it has is dropped."""
        self._outputs.pop(request.index, None)
        yield from self._given(Completion(request, error=error))

    def _given(self, completion: Completion) -> Iterator[Completion]:
        return fan_out(completion, self._asked.pop(completion.request.index, ()))
