"""Outcome: what one way of running a model makes of a text and its prompts."""

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.bench.accuracy.accuracy_figures import WayFigures
from pagedrun.paged.bench.accuracy.token_windows import TokenWindow
from pagedrun.paged.bench.accuracy.way import Way
from pagedrun.paged.bench.result import plain_config
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.logprobs import TokenLogprob
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams

Say = Callable[[str], None]

_SCORE = SamplingParams(max_tokens=0, prompt_logprobs=1)
_TELL_EACH = 10  # of a hundred


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer; `gaps` is, at each token, how far the likeliest was ahead of the second."""

    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Of every scored token of a text, in order: its log-probability, and the likeliest token.

    logprobs: [num_tokens] float64. top: [num_tokens] int64, ids.
    """

    logprobs: NDArray[np.float64]
    top: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """The mean log-probability."""
        return float(self.logprobs.mean())

    @property
    def perplexity(self) -> float | None:
        """What it comes to; None where that is past what a float holds."""
        try:
            return math.exp(-self.mean)
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """`figures` are those of the way, `device` what it ran on."""

    figures: WayFigures
    scores: Scores
    answers: tuple[Answer, ...]

    @classmethod
    def of(
        cls,
        engine: Engine,
        way: Way,
        windows: Seq[TokenWindow],
        prompts: Seq[Request],
        say: Say,
    ) -> "Outcome":
        """Score the windows and answer the prompts; raises `UsageError` if one cannot be run."""
        scores = _scores(engine, windows, lambda done: say(f"{way.name}: {done}"))
        say(f"{way.name}: perplexity {scores.perplexity:.4f}" if scores.perplexity else way.name)
        answers = tuple(map(_answer, _completed(engine, prompts)))
        loaded = engine.loaded
        figures: WayFigures = {
            "name": way.name,
            "model": way.folder.name,
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "config": plain_config(asdict(engine.config)),
            "weight_bytes": loaded.model.num_bytes,
            "mean_logprob": scores.mean,
            "perplexity": scores.perplexity,
            "generated_tokens": sum(len(answer.token_ids) for answer in answers),
        }
        return cls(figures, scores, answers)


def asked(prompts: Seq[tuple[int, ...]], max_tokens: int) -> list[Request]:
    """Return the requests for greedy answers to prompts."""
    params = SamplingParams(max_tokens=max_tokens, logprobs=2)
    return [Request(index, ids, params) for index, ids in enumerate(prompts)]


def _scores(engine: Engine, windows: Seq[TokenWindow], say: Say) -> Scores:
    requests = [Request(index, each.token_ids, _SCORE) for index, each in enumerate(windows)]
    found: list[tuple[list[float], list[int]]] = [([], []) for _ in windows]
    # A window's objects go as soon as it is answered: those of a long text would fill gigabytes.
    for count, completion in enumerate(engine.start(requests), start=1):
        index = _checked(completion).request.index
        known = completion.prompt_logprobs or ()
        tokens = [each for each in known[windows[index].first :] if each is not None]
        found[index] = [each.logprob for each in tokens], [each.top[0].token_id for each in tokens]
        if count * _TELL_EACH // len(windows) > (count - 1) * _TELL_EACH // len(windows):
            say(f"{count:,} of {len(windows):,} chunks")
    return Scores(
        np.array(list(chain.from_iterable(logprobs for logprobs, _ in found)), np.float64),
        np.array(list(chain.from_iterable(top for _, top in found)), np.int64),
    )


def _completed(engine: Engine, requests: Seq[Request]) -> list[Completion]:
    found = map(_checked, engine.start(requests))
    return sorted(found, key=lambda each: each.request.index)


def _checked(completion: Completion) -> Completion:
    if completion.error is not None:
        number = completion.request.index + 1
        raise UsageError(f"prompt {number} cannot be run: {completion.error.marked}")
    return completion


def _answer(completion: Completion) -> Answer:
    output = completion.outputs[0]
    return Answer(output.token_ids, tuple(_gaps(output.logprobs or ())))


def _gaps(tokens: Seq[TokenLogprob]) -> Iterator[float]:
    for token in tokens:
        first, second = token.top
        yield first.logprob - second.logprob
