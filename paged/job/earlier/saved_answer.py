"""SavedAnswer: what a line of an output says in answer to its row, read and checked.

Whoever wrote the line, nothing is taken from it that a run could not have written.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pagedrun.paged.files.json_object import is_integer
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.logprobs import Score, TokenLogprob, TopLogprob
from pagedrun.paged.values.request import FinishReason, SampleOutput

T = TypeVar("T")
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """The parts of a completion that are in a line; see `OutputRow`."""

    outputs: tuple[SampleOutput, ...]
    num_cached_tokens: int
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    scores: tuple[Score, ...]

    @classmethod
    def parse(cls, line: bytes) -> "SavedAnswer | None":
        """Return the answer that a line holds; None if it is none, or not in our own format."""
        try:
            row = _object(json.loads(line, parse_constant=_refuse))
            if row["error"] is not None:
                return None
            return cls(
                outputs=_tuple(row["outputs"], _output),
                num_cached_tokens=_integer(_object(row["usage"])["cached_tokens"]),
                prompt_logprobs=_optional(row.get("prompt_logprobs"), _prompt_logprobs),
                scores=_tuple(row.get("scores", []), _score),
            )
        except (ValueError, KeyError, RecursionError):
            return None

    def largest_id(self) -> int:
        """Return the largest token id of its outputs, -1 without any."""
        return max((max(each.token_ids, default=-1) for each in self.outputs), default=-1)


def _output(value: JSONValue) -> SampleOutput:
    output = _object(value)
    stop = output["stop_reason"]
    return SampleOutput(
        index=_integer(output["index"]),
        text=_text(output["text"]),
        token_ids=_tuple(output["token_ids"], _integer),
        finish_reason=FinishReason(_text(output["finish_reason"])),
        stop_reason=stop if stop is None or isinstance(stop, str) else _integer(stop),
        logprobs=_optional(output["logprobs"], lambda tokens: _tuple(tokens, _token)),
        reasoning=_optional(output.get("reasoning"), _text),
        beam_score=_optional(output.get("beam_score"), _number),
    )


def _prompt_logprobs(value: JSONValue) -> tuple[TokenLogprob | None, ...]:
    return _tuple(value, lambda token: _optional(token, _token))


def _token(value: JSONValue) -> TokenLogprob:
    token = _object(value)
    return TokenLogprob(
        token_id=_integer(token["token_id"]),
        text=_text(token["text"]),
        logprob=_number(token["logprob"]),
        rank=_integer(token["rank"]),
        top=_tuple(token["top"], _top),
    )


def _top(value: JSONValue) -> TopLogprob:
    token = _object(value)
    return TopLogprob(
        token_id=_integer(token["token_id"]),
        text=_text(token["text"]),
        logprob=_number(token["logprob"]),
        rank=_integer(token["rank"]),
    )


def _score(value: JSONValue) -> Score:
    score = _object(value)
    is_greedy = score["is_greedy"]
    if not isinstance(is_greedy, bool):
        raise ValueError
    return Score(
        text=_text(score["text"]),
        logprob=_number(score["logprob"]),
        num_tokens=_integer(score["num_tokens"]),
        is_greedy=is_greedy,
        token_logprobs=_tuple(score["token_logprobs"], _number),
    )


def _object(value: JSONValue) -> dict[str, JSONValue]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _tuple(value: JSONValue, read: Callable[[JSONValue], T]) -> tuple[T, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(map(read, value))


def _optional(value: JSONValue, read: Callable[[JSONValue], T]) -> T | None:
    return None if value is None else read(value)


def _text(value: JSONValue) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _integer(value: JSONValue) -> int:
    if not is_integer(value) or not 0 <= value <= _MOST:
        raise ValueError
    return value


def _number(value: JSONValue) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError
    return value


def _refuse(constant: str) -> float:
    raise ValueError(constant)
