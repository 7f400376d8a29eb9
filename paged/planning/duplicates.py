"""Duplicates: requests whose answers must be the same, computed once and answered each."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pagedrun.paged.values.request import Completion, Request, SampleOutput
from pagedrun.paged.values.sampling.ballot import Ballot
from pagedrun.paged.values.sampling.sampling_params import SamplingParams


class Duplicates:
    """The `distinct` requests among many, and by their index the requests `asked`, themselves
    first, wherever these are more or other than the one.

    Two requests are the same question if their tokens are and both are greedy with the same
    limits and stops; the several samples of a greedy request are one. Sampled requests are never
    the same, even with one seed: their random stream is keyed by the row's index too, so that
    repeating a row gives another draw.
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
            is_single = params.n == 1 or params.has_beams or request.continuations
            alone = request if is_single else _single(request)
            self.distinct.append(alone)
            if alone is not request:
                self.asked[request.index] = [request]

    def without(self, done: Container[int]) -> set[int]:
        """Leave out requests that are answered already, by index; return those of the `distinct`
        ones of which nobody is left to ask.
        """
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
        """Return the prompt tokens of all duplicates but those of the requests named."""
        left_out = {request.index for request in without}
        return sum(
            (len(asked) - 1) * len(asked[0].prompt_token_ids)
            for index, asked in self.asked.items()
            if index not in left_out
        )


def fan_out(completion: Completion, asked: Sequence[Request]) -> Iterator[Completion]:
    """Yield the answer to each of the requests `asked`, of which the first was computed.

    The prompt of a duplicate counts as cached to its last token, since nothing of it is computed.
    """
    for place, request in enumerate(asked or (completion.request,)):
        outputs, params = completion.outputs, request.params
        if outputs and params.is_greedy and len(outputs) != params.n:
            outputs = tuple(replace(outputs[0], index=i) for i in range(params.n))
        vote = None
        if outputs and params.vote is not None:
            vote = Ballot.decided(params.vote, params.n, (output.text for output in outputs))
            outputs = outputs[: vote.drawn]
        num_cached = completion.num_cached_tokens
        if place and completion.error is None:
            num_cached = len(request.prompt_token_ids)
        num_computed = 0 if place else _num_tokens(completion.outputs)
        yield Completion(
            request,
            outputs,
            num_cached,
            completion.error,
            is_duplicate=place > 0,
            num_copied_tokens=_num_tokens(outputs) - num_computed,
            vote=vote,
            num_read_once_tokens=completion.num_read_once_tokens,
            num_begun_tokens=completion.num_begun_tokens,
        )


def _determining(params: SamplingParams) -> SamplingParams:
    """Return greedy parameters without what a greedy choice does not look at.

    Samples of one request are the same; its beams are not.
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


def _single(request: Request) -> Request:
    return replace(request, params=replace(request.params, n=1))
