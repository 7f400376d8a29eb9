"""Two outputs row by row: which rows are the same, and how the others differ."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from pagedrun.paged.job.comparison.compared_answer import ComparedAnswer, common_length
from pagedrun.paged.job.comparison.output_index import OutputFigures, OutputIndex

CONTEXT = 24  # characters before a difference


class Side(TypedDict):
    """One of two answers: `text` is what is around the first difference, null for a failed row."""

    index: int
    text: str | None
    error: str | None
    finish_reasons: list[str]
    tokens: int


class Change(TypedDict):
    """A row whose answers differ: first in `what`, and their texts at character `at`."""

    id: str | int
    what: str
    at: int | None
    a: Side
    b: Side


class RowChanges(TypedDict):
    """How many rows there are of each kind; `added` are in B alone, `missing` in A alone."""

    same: int
    changed: int
    added: int
    missing: int


class Comparison(TypedDict):
    """What `pagedrun diff` tells. `gained` are rows that are as expected in B and were not in A,
    `lost` the others. The lists hold the first rows of each kind."""

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
    """Compare two outputs; of each kind of difference the first `most_shown` rows are told.

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


def _differing(
    a: OutputIndex, b: OutputIndex, in_a: dict[str, int], in_b: dict[str, int]
) -> Iterator[tuple[ComparedAnswer, ComparedAnswer]]:
    """Yield the answers of rows that are in both and whose lines are not the same."""
    for key, offset in in_a.items():
        if key not in in_b:
            continue
        lines = a.read(offset), b.read(in_b[key])
        if lines[0] != lines[1]:
            one, other = map(ComparedAnswer.parse, lines)
            if one is not None and other is not None:  # they were, when the files were read
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
    index: OutputIndex, places: dict[str, int], keys: set[str], most_shown: int
) -> list[str | int]:
    """Return the ids of the first rows that are meant, in the order of the file."""
    found: list[str | int] = []
    for key in (key for key in places if key in keys):
        answer = ComparedAnswer.parse(index.read(places[key]))
        if len(found) == most_shown or answer is None:
            break
        found.append(answer.id)
    return found
