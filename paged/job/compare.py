"""Comparison of two outputs, row by row."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TypedDict

from pagedrun.paged.files.json_object import is_integer
from pagedrun.paged.job.output.saved_rows import SavedRow
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.json_value import JSONValue

CONTEXT = 24  # characters before a difference


class Side(TypedDict):
    """One of two answers; `text` is the part around the first difference, null for a failed row."""

    index: int
    text: str | None
    error: str | None
    finish_reasons: list[str]
    tokens: int


class Change(TypedDict):
    """Row with different answers: `what` names the first difference, `at` its character in the
    texts.
    """

    id: str | int
    what: str
    at: int | None
    a: Side
    b: Side


class RowChanges(TypedDict):
    """Number of rows of each kind; `added` are in B alone, `missing` in A alone."""

    same: int
    changed: int
    added: int
    missing: int


class OutputFigures(TypedDict):
    """Figures of one output; `correct` counts the `expected` rows, those with a named answer, that
    match it.
    """

    path: str
    rows: int
    failed: int
    finish_reasons: dict[str, int]
    completion_tokens: int
    expected: int
    correct: int
    torn: bool


class Comparison(TypedDict):
    """Result of `pagedrun diff`. `gained` rows are correct in B and were not in A, `lost` the
    reverse. The lists hold the first rows of each kind.
    """

    a: OutputFigures
    b: OutputFigures
    same: bool
    matched_by: str
    rows: RowChanges
    changed_in: dict[str, int]
    gained: int
    lost: int
    changes: list[Change]
    added: list[str | int]
    missing: list[str | int]


def compare(path_a: Path, path_b: Path, most_shown: int) -> Comparison:
    """Compare two outputs, with details of the first `most_shown` rows of each kind of difference.

    Rows are matched by their ids where these are unique in both, else by their index. Raises
    `UsageError` for a file that is no output.
    """
    a, b = OutputIndex(path_a), OutputIndex(path_b)
    by_id = a.has_unique_ids and b.has_unique_ids
    in_a, in_b = (each.by_id if by_id else each.by_index for each in (a, b))
    changed_in: Counter[str] = Counter()
    gained = lost = 0
    changes: list[Change] = []
    for one, other in _differing(a, b, in_a, in_b):
        what = one.difference(other)
        if what is None:
            continue
        changed_in[what] += 1
        gained += other.is_correct is True and one.is_correct is False
        lost += one.is_correct is True and other.is_correct is False
        if len(changes) < most_shown:
            changes.append(_change(one, other, what))
    added, missing = in_b.keys() - in_a.keys(), in_a.keys() - in_b.keys()
    num_changed = changed_in.total()
    return {
        "a": a.figures(),
        "b": b.figures(),
        "same": not (num_changed or added or missing),
        "matched_by": "id" if by_id else "index",
        "rows": {
            "same": len(in_a) - len(missing) - num_changed,
            "changed": num_changed,
            "added": len(added),
            "missing": len(missing),
        },
        "changed_in": dict(changed_in),
        "gained": gained,
        "lost": lost,
        "changes": changes,
        "added": _ids(b, in_b, added, most_shown),
        "missing": _ids(a, in_a, missing, most_shown),
    }


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """Answer of a row with its index and id.

    `text` is None for a failed row, `error` its code. `finish_reasons` has one item for each
    output, `num_tokens` their tokens. `is_correct` is None without an expected answer. `whole` is
    the complete answer.
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
        """Return the answer of a line, None if it is no output row."""
        saved = SavedRow.parse(line)
        row = {} if saved is None else saved.fields
        row_id = next((row[key] for key in _IDS if key in row), None)
        if saved is None or not isinstance(row_id, str | int):
            return None
        body = saved.body
        outputs = _objects(body.get("outputs", body.get("choices")))
        first = outputs[0] if outputs else {}
        text = body.get("text", first.get("text", _object(first.get("message")).get("content")))
        text = text if isinstance(text, str) else None
        error = body.get("error")
        code = error.get("code") if isinstance(error, dict) else error
        num_tokens = _object(body.get("usage")).get("completion_tokens")
        return cls(
            index=saved.index,
            id=row_id,
            text=text,
            error=None if code is None else str(code),
            finish_reasons=tuple(str(each.get("finish_reason")) for each in outputs),
            num_tokens=num_tokens if is_integer(num_tokens) else 0,
            is_correct=_is_correct(row, text),
            whole=_answer_of(row),
        )

    def difference(self, other: "ComparedAnswer") -> str | None:
        """Return the most visible difference between two answers, None if they are equal."""
        if self.whole == other.whole:
            return None
        for name in ("error", "text", "finish_reasons"):
            if getattr(self, name) != getattr(other, name):
                return name.removesuffix("s")
        return "details"


class OutputIndex:
    """Rows of an output by index and, if these are unique, by id."""

    def __init__(self, path: Path) -> None:
        """Read the whole file once. Raises `UsageError` if it cannot be read or is no output."""
        self.path = path
        self.by_index: dict[str, int] = {}
        self.by_id: dict[str, int] = {}
        self.has_unique_ids = True
        self._reasons: Counter[str] = Counter()
        self._figures: OutputFigures = {
            "path": os.fsencode(path).decode("utf-8", "replace"),
            "rows": 0,
            "failed": 0,
            "finish_reasons": {},
            "completion_tokens": 0,
            "expected": 0,
            "correct": 0,
            "torn": False,
        }
        try:
            self._file = path.open("rb")
            offset = 0
            for number, line in enumerate(self._file, start=1):
                self._figures["torn"] = not line.endswith(b"\n")
                if not self._figures["torn"]:
                    self._take(number, line, offset)
                offset += len(line)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"{path} cannot be read ({reason})") from error

    def read(self, offset: int) -> bytes:
        """Return the line at an offset."""
        self._file.seek(offset)
        return self._file.readline()

    def figures(self) -> OutputFigures:
        """Return the figures of the whole output."""
        return {**self._figures, "finish_reasons": dict(sorted(self._reasons.items()))}

    def _take(self, number: int, line: bytes, offset: int) -> None:
        answer = ComparedAnswer.parse(line)
        if answer is None:
            raise UsageError(
                f"{self.path}, line {number} is not an output row; name two outputs of pagedrun "
                "generate"
            )
        index = str(answer.index)
        if index in self.by_index:
            raise UsageError(
                f"{self.path}, line {number} answers row {index} a second time; it is not the "
                "output of one run"
            )
        self.by_index[index] = offset
        row_id = json.dumps(answer.id)
        self.has_unique_ids = self.has_unique_ids and row_id not in self.by_id
        self.by_id[row_id] = offset
        self._reasons.update(answer.finish_reasons)
        figures = self._figures
        figures["rows"] += 1
        figures["failed"] += answer.error is not None
        figures["completion_tokens"] += answer.num_tokens
        figures["expected"] += answer.is_correct is not None
        figures["correct"] += answer.is_correct is True


def _differing(
    a: OutputIndex, b: OutputIndex, in_a: dict[str, int], in_b: dict[str, int]
) -> Iterator[tuple[ComparedAnswer, ComparedAnswer]]:
    """Yield the answers of rows in both files with different lines."""
    for key, offset in in_a.items():
        if key not in in_b:
            continue
        lines = a.read(offset), b.read(in_b[key])
        if lines[0] != lines[1]:
            one, other = map(ComparedAnswer.parse, lines)
            if one is not None and other is not None:  # true when the files were indexed
                yield one, other


def _change(one: ComparedAnswer, other: ComparedAnswer, what: str) -> Change:
    at = None
    if one.text is not None and other.text is not None and one.text != other.text:
        at = common_length(one.text, other.text)
    return {"id": other.id, "what": what, "at": at, "a": _side(one, at), "b": _side(other, at)}


def _side(answer: ComparedAnswer, at: int | None) -> Side:
    text = answer.text
    if text is not None:
        begin = max((at or 0) - CONTEXT, 0)
        text = ("…" if begin else "") + text[begin : begin + 4 * CONTEXT]
    return {
        "index": answer.index,
        "text": text,
        "error": answer.error,
        "finish_reasons": list(answer.finish_reasons),
        "tokens": answer.num_tokens,
    }


def _ids(
    index: OutputIndex, offsets: dict[str, int], keys: set[str], most_shown: int
) -> list[str | int]:
    """Return the ids of the first `most_shown` of these rows, in the order of the file."""
    found: list[str | int] = []
    for key in (key for key in offsets if key in keys):
        answer = ComparedAnswer.parse(index.read(offsets[key]))
        if len(found) == most_shown or answer is None:
            break
        found.append(answer.id)
    return found


# Keys that describe position and cost of a row, not its answer.
_ASIDE = frozenset({"index", "id", "custom_id", "input", "usage", "request_id", "created"})
_IDS = ("custom_id", "id")  # the former in OpenAI batch rows, whose id is generated


def common_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts, in characters."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _answer_of(value: JSONValue, depth: int = 0) -> JSONValue:
    """Return a row without the keys of `_ASIDE`, at its top and in an OpenAI response."""
    if not isinstance(value, dict) or depth > 2:
        return value
    return {
        name: _answer_of(each, depth + 1) if name in ("response", "body") else each
        for name, each in value.items()
        if name not in _ASIDE
    }


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
