"""Rows of an earlier output, read back: finished rows of a resumed run, and answers to reuse.

Values are validated as strictly as a run writes them, since the file may have another author.
"""

import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from pagedrun.paged.files.json_object import is_integer
from pagedrun.paged.job.output.line_digests import (
    NO_LINES,
    LineSum,
    RecordedLines,
    line_digest,
)
from pagedrun.paged.job.output.output_row import ANSWERED
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.logprobs import Score, TokenLogprob, TopLogprob
from pagedrun.paged.values.request import FinishReason, SampleOutput


class Spans:
    """Places of lines in a file, in 24 bytes each."""

    def __init__(self) -> None:
        self._indices, self._offsets, self._sizes = array("q"), array("q"), array("q")

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield index, offset and number of bytes of each line, as they were added."""
        return zip(self._indices, self._offsets, self._sizes, strict=True)

    def add(self, index: int, offset: int, num_bytes: int) -> None:
        """Add the line of a row."""
        self._indices.append(index)
        self._offsets.append(offset)
        self._sizes.append(num_bytes)

    def last(self) -> tuple[int, int, int]:
        """Return the line that was added last."""
        return self._indices[-1], self._offsets[-1], self._sizes[-1]

    def by_index(self) -> "tuple[array[int], array[int]]":
        """Return all indices in ascending order, and the place of each line in this list."""
        indices = np.array(self._indices)
        order = np.argsort(indices, kind="stable")
        return array("q", indices[order].tobytes()), array("q", order.tobytes())

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yield offset and number of bytes of each line, by the index of its row."""
        for place in np.argsort(np.array(self._indices), kind="stable"):
            yield self._offsets[place], self._sizes[place]


SYNC_ROWS = 4096  # at most as many are not yet on the disk
_MISSING, _ANSWERED, _FAILED = range(3)
_PAGE_ROWS = 4096
_MOST_INDEX = 2**63 - 1


class FinishedRows:
    """Set of the rows of an output file, by index, in 33 bytes each.

    `lines` are their places in the file, `num_bytes` is the end of the last line that counts, and
    `line_sum` the sum of these. A killed run may have left a partial line at the end, and
    `num_unrecorded` lines before it that it did not record, or that were not on the disk when the
    power failed; they are ignored. `recorded` are the lines that it did record, None if that is
    unknown. `is_checked`: lines were compared with their records, or with their sum. With `is_all`,
    the rows are complete, in converted files, and have no lines.
    """

    def __init__(self) -> None:
        self.lines = Spans()
        self.num_bytes = 0
        self.num_failed = 0
        self.num_unrecorded = 0
        self.line_sum = NO_LINES
        self.recorded: RecordedLines | None = None
        self.is_checked = False
        self.is_all = False
        self._count = 0
        self._unrecorded = Spans()  # lines of errors, by a version that did not record them
        self._ids = array("Q")  # digests, in the order of `lines`
        self._order: tuple[array[int], array[int]] | None = None
        self._pages: dict[int, bytearray] = {}  # a byte a row; by index // _PAGE_ROWS

    @classmethod
    def read(
        cls, path: str, recorded: RecordedLines | None = None, begun: LineSum | None = None
    ) -> "FinishedRows":
        """Read an output.

        recorded: lines that its run recorded, None if that is unknown. begun: the first lines, by
        the manifest of that run, None for one of a version that did not record lines of errors.
        Raises `UsageError` with a line number if it is not one of ours, or a line has changed.
        """
        found = cls()
        found.recorded = recorded
        first = NO_LINES
        first_unrecorded = 0  # a killed run had no time to record its last lines
        first_unknown = 0  # one of these, or an error, or a line that has changed
        first_torn = 0
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.endswith(b"\n"):
                        break  # partial: the run died while writing it
                    if not first_torn and b"\0" in line:
                        first_torn = number  # not on the disk when the power failed
                    if first_torn:
                        found.num_unrecorded += 1
                        continue
                    row, digest = SavedRow.parse(line), line_digest(line)
                    if begun is not None and first.count < begun.count:
                        first = first.plus(digest)
                    is_recorded = True
                    if recorded is not None and row is not None:
                        is_recorded = recorded.find(digest)
                        is_older = row.has_failed and begun is None
                        if is_recorded and first_unrecorded:
                            raise _changed(path, first_unrecorded)
                        if not is_recorded and not is_older:
                            first_unknown = first_unknown or number
                        if not is_recorded and not row.has_failed:
                            first_unrecorded = first_unrecorded or number
                    if first_unrecorded:
                        found.num_unrecorded += 1
                    else:
                        found._take(path, number, line, row)
                        found.line_sum = found.line_sum.plus(digest)
                        if not is_recorded:
                            found._unrecorded.add(*found.lines.last())
            if first_torn and number - first_torn >= SYNC_ROWS:
                raise _refused(
                    path,
                    first_torn,
                    "is damaged, and more rows follow it than a power failure can leave",
                )
        except OSError as error:
            raise UsageError(
                f"{option('resume')}: {path} cannot be read ({error.strerror})"
            ) from error
        if first_unknown and recorded is not None and recorded.num_missing:
            # Either the run was killed before a record, or its disk lost the end of the lines.
            raise _changed(path, first_unknown)
        if recorded is None and begun is not None and first != begun:
            raise UsageError(
                f"{option('resume')}: {path} has changed since its run wrote it, and without the "
                "file of digests beside it the line is unknown; put either file back as it was, "
                f"name another output, or pass {option('overwrite')} instead of {option('resume')}"
            )
        found.is_checked = recorded is not None or found.line_sum == begun
        return found

    @classmethod
    def all(cls, num_rows: int) -> "FinishedRows":
        """Return the rows of a run that answered everything and converted its journal."""
        found = cls()
        found.is_all = True
        for index in range(num_rows):
            found._add(index, _ANSWERED)
        return found

    def __len__(self) -> int:
        return self._count

    def __contains__(self, index: object) -> bool:
        assert isinstance(index, int)
        return self._state(index) != _MISSING

    def has_failed(self, index: int) -> bool:
        """Return whether the row has an error."""
        return self._state(index) == _FAILED

    def answered(self) -> Iterator[tuple[int, int, int]]:
        """Yield index, offset and size in bytes of each answered row, in the order of the file."""
        return (line for line in self.lines if not self.has_failed(line[0]))

    @property
    def without_record(self) -> Iterator[tuple[int, int, int]]:
        """Index, offset and size in bytes of each line that has no record."""
        return iter(self.lines if self.recorded is None else self._unrecorded)

    def _state(self, index: int) -> int:
        page = self._pages.get(index // _PAGE_ROWS)
        return _MISSING if page is None else page[index % _PAGE_ROWS]

    def _add(self, index: int, state: int) -> None:
        page = self._pages.get(index // _PAGE_ROWS)
        if page is None:
            page = self._pages[index // _PAGE_ROWS] = bytearray(_PAGE_ROWS)
        page[index % _PAGE_ROWS] = state
        self._count += 1
        self.num_failed += state == _FAILED

    def check_id(self, path: str, index: int, ids: Iterable[JSONValue]) -> None:
        """Raise `UsageError` unless a row of the input has one of the `ids` in the output, too."""
        place = self._place_of(index)
        if place is not None and self._ids[place] not in map(_id_digest, ids):
            raise _refused(path, place + 1, f"answers row {index} under another id than the input")

    def check_end(self, path: str, num_rows: int) -> None:
        """Raise `UsageError` if a row lies beyond the end of the input."""
        for number, (index, _, _) in enumerate(self.lines, start=1):
            if index >= num_rows:
                raise _refused(
                    path, number, f"answers row {index:,}, and the input has {num_rows:,}"
                )

    def _place_of(self, index: int) -> int | None:
        """Return the place of a row in `lines`."""
        if self._order is None:
            self._order = self.lines.by_index()
        indices, places = self._order
        found = bisect_left(indices, index)
        return places[found] if found < len(indices) and indices[found] == index else None

    def _take(self, path: str, number: int, line: bytes, row: "SavedRow | None") -> None:
        if row is None:
            raise _refused(path, number, "is not an output row")
        if row.index in self:
            raise _refused(path, number, f"has a second answer to row {row.index}")
        self._add(row.index, _FAILED if row.has_failed else _ANSWERED)
        self._ids.append(_id_digest(row.fields.get("custom_id", row.fields.get("id"))))
        self.lines.add(row.index, self.num_bytes, len(line))
        self.num_bytes += len(line)


def _changed(path: str, number: int) -> UsageError:
    return UsageError(
        f"{option('resume')}: {path}, line {number} is not the line that its run wrote, by the "
        "digests beside it; put that line back, or remove it: its row is then computed again"
    )


def _refused(path: str, number: int, what: str) -> UsageError:
    return UsageError(
        f"{option('resume')}: {path}, line {number} {what}; this file cannot be continued: name "
        f"another output, or pass {option('overwrite')} instead of {option('resume')}"
    )


def _id_digest(row_id: JSONValue) -> int:
    text = str(row_id).encode("utf-8", "replace")  # as it is written
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


ID_KEYS = ("id", "custom_id")  # the latter in answers to OpenAI batch rows


@dataclass(frozen=True, slots=True)
class SavedRow:
    """Row of an output in either format: its index, its ids as text, and its JSON object."""

    index: int
    ids: tuple[str, ...]
    has_failed: bool
    fields: dict[str, JSONValue] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, line: bytes) -> "SavedRow | None":
        """Return the row of a line, None if it is no output row."""
        try:
            row: JSONValue = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(row, dict) or "error" not in row:
            return None
        index = row.get("index")
        if not is_integer(index) or not 0 <= index <= _MOST_INDEX:
            return None
        ids = tuple(str(row[key]) for key in ID_KEYS if isinstance(row.get(key), str | int))
        response = row.get("response")
        if isinstance(response, dict):
            has_failed = response.get("status_code") != ANSWERED
        else:
            has_failed = row["error"] is not None
        return cls(index, ids, has_failed, row)

    @property
    def body(self) -> dict[str, JSONValue]:
        """Object with the answer: the row, or the body of an OpenAI response."""
        response = self.fields.get("response")
        if not isinstance(response, dict):
            return self.fields
        body = response.get("body")
        return body if isinstance(body, dict) else {}


T = TypeVar("T")
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """Parts of a completion in a line; see `OutputRow`."""

    outputs: tuple[SampleOutput, ...]
    num_cached_tokens: int
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    scores: tuple[Score, ...]

    @classmethod
    def parse(cls, line: bytes) -> "SavedAnswer | None":
        """Return the answer of a line; None if it is invalid, or not in our own format."""
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
