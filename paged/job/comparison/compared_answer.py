"""ComparedAnswer: what a line of an output answers its row, for two of them to be compared."""

import json
from dataclasses import dataclass, field
from itertools import takewhile

from pagedrun.paged.files.json_object import is_integer
from pagedrun.paged.job.output.batch_row import ANSWERED
from pagedrun.paged.values.json_value import JSONValue

# What tells of a row's place and its computation, and is no part of its answer.
_ASIDE = frozenset({"index", "id", "custom_id", "input", "usage", "request_id", "created"})
_IDS = ("custom_id", "id")  # the former in answers to OpenAI batch rows, whose id is made up


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """A row by its index and id, and what can be told of its answer.

    `text` is None for a failed row, `error` its code. `finish_reasons` are those of its outputs,
    `num_tokens` all that they have. `is_correct` is None where the row names no expected answer.
    `whole` is all that the answer consists of.
    """

    index: int
    id: str | int
    text: str | None
    error: str | None
    finish_reasons: tuple[str, ...]
    num_tokens: int
    is_correct: bool | None
    whole: JSONValue = field(repr=False)

    @classmethod
    def parse(cls, line: bytes) -> "ComparedAnswer | None":
        """Return the answer that a line holds; None if it is no output row."""
        try:
            row: JSONValue = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(row, dict) or "error" not in row:
            return None
        index, row_id = row.get("index"), next((row[key] for key in _IDS if key in row), None)
        if not is_integer(index) or not isinstance(row_id, str | int):
            return None
        read = _of_call if isinstance(row.get("response"), dict) else _of_row
        text, error, outputs = read(row)
        return cls(
            index=index,
            id=row_id,
            text=text,
            error=error,
            finish_reasons=tuple(str(each.get("finish_reason")) for each in outputs),
            num_tokens=_num_tokens(row),
            is_correct=_is_correct(row, text),
            whole=_answer_of(row),
        )

    def difference(self, other: "ComparedAnswer") -> str | None:
        """Return in what two answers differ, the first that a reader would look at; None if in
        nothing.
        """
        if self.whole == other.whole:
            return None
        for name in ("error", "text", "finish_reasons"):
            if getattr(self, name) != getattr(other, name):
                return name.removesuffix("s")
        return "details"


def common_length(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _of_row(row: dict[str, JSONValue]) -> tuple[str | None, str | None, list[dict[str, JSONValue]]]:
    """Return text, error and outputs of a row in our own format."""
    text, error = row.get("text"), row["error"]
    code = error.get("code") if isinstance(error, dict) else error
    return (
        text if isinstance(text, str) else None,
        None if code is None else str(code),
        _objects(row.get("outputs")),
    )


def _of_call(
    row: dict[str, JSONValue],
) -> tuple[str | None, str | None, list[dict[str, JSONValue]]]:
    """Return the same of an answer to a row of an OpenAI batch file."""
    response = _object(row["response"])
    body = _object(response.get("body"))
    if response.get("status_code") != ANSWERED:
        return None, str(_object(body.get("error")).get("code")), []
    choices = _objects(body.get("choices"))
    first = choices[0] if choices else {}
    text = first.get("text", _object(first.get("message")).get("content"))
    return (text if isinstance(text, str) else None), None, choices


def _answer_of(value: JSONValue, depth: int = 0) -> JSONValue:
    """Return a row without what is no part of its answer, at its top and in an OpenAI response."""
    if not isinstance(value, dict) or depth > 2:
        return value
    return {
        name: _answer_of(each, depth + 1) if name in ("response", "body") else each
        for name, each in value.items()
        if name not in _ASIDE
    }


def _num_tokens(row: dict[str, JSONValue]) -> int:
    body = _object(_object(row.get("response")).get("body"))
    count = _object(row.get("usage", body.get("usage"))).get("completion_tokens")
    return count if is_integer(count) else 0


def _is_correct(row: dict[str, JSONValue], text: str | None) -> bool | None:
    expected, vote = _object(row.get("input")).get("expected"), row.get("vote")
    if not isinstance(expected, str):
        return None
    answer = _object(vote).get("winner") if isinstance(vote, dict) else text
    return isinstance(answer, str) and answer.strip() == expected.strip()


def _object(value: JSONValue) -> dict[str, JSONValue]:
    return value if isinstance(value, dict) else {}


def _objects(value: JSONValue) -> list[dict[str, JSONValue]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
