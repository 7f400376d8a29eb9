"""Checks over many rows: unique ids, and command mistakes that fail all rows."""

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Row, id_column
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.job.prompts.prompt_builder import TemplateColumns
from pagedrun.paged.job.prompts.requests import JobRow, OpenAIRequest
from pagedrun.paged.text.prompt_reader import PROMPT_FORMS
from pagedrun.paged.values.errors import RowError, UsageError, option

Position = int | tuple[str, int]
"""Line, or input and line."""

MIN_ROWS = 2  # a single row may be wrong by itself
MAX_LOOKED_AT = 1000  # rows inspected for columns that a template could use
# Error codes caused by the way the command reads the file; other errors belong to the row.
_READING = {"invalid_json_line", "missing_prompt", "template_error", "prompt_too_long"}
_MAX_NAMED = 8  # columns
# Usual names of prompt columns, likeliest first.
_USUAL = ("question", "instruction", "query", "text", "input", "content", "problem", "user")


def check_prompt_columns(rows: Sequence[Row], config: JobConfig) -> None:
    """Raise `UsageError` if no row of the first window has a prompt column.

    Needs no model, so the error comes at once.
    """
    field = config.prompts.field
    names = PROMPT_FORMS if field is None else (field,)
    readable = [row for row in rows if row.error is None]
    if config.resume or config.prompts.template is not None or len(readable) < MIN_ROWS:
        return
    if any(row.columns.get(name) is not None for row in readable for name in names):
        return
    if field is None and any(OpenAIRequest.of(row.columns) is not None for row in readable):
        return
    sought = f"column {shown_key(field)}" if field is not None else "prompt, messages or token ids"
    raise UsageError(
        f"{config.input_shown}: no row has a {sought}{_columns_of(readable)}", field="prompt_field"
    )


def check_template(rows: Sequence[Row], config: JobConfig, listener: JobListener) -> None:
    """Raise `UsageError` for a template with columns in single braces, which are not variables.

    Warns of a template that reads no column: all `rows` of the first window get the same prompt.
    """
    template = config.prompts.template
    known = [row.columns for row in rows[:MAX_LOOKED_AT] if row.error is None and row.columns]
    if template is None or config.resume or not known:
        return
    columns = list(dict.fromkeys(name for each in known for name in each))
    used = TemplateColumns.of(template.source)
    wrong = [name for name in used.in_braces if name in columns]
    flag = option("prompt_template")
    if wrong:
        meant = ", ".join(f"{{{{ {name} }}}}" for name in wrong)
        name = wrong[0]
        raise UsageError(
            f"{flag} has {{{name}}} in single braces, which is text and no column: did you mean "
            f"{meant}? Text in braces is written {{{{ '{{{name}}}' }}}}"
        )
    if used.reads_row or not used.names.isdisjoint(columns):
        return
    listener.on_warning(
        f"{flag} uses no column of the rows, so all get the same prompt; their columns are "
        f"{_listed(columns)}"
    )


def check_all_failed(rows: Sequence[Row], asked: Sequence[JobRow], config: JobConfig) -> None:
    """Raise `UsageError` if all first rows fail for one reason caused by the command."""
    errors = [row.error for row in asked if row.error is not None]
    if config.resume or len(errors) < max(len(asked), MIN_ROWS):
        return
    if len({(error.code, error.param) for error in errors}) > 1 or errors[0].code not in _READING:
        return
    first = asked[0]
    is_of_columns = errors[0].code == "template_error" and config.prompts.template is not None
    about_columns = _columns_of(rows) if is_of_columns else ""
    raise UsageError(
        f"{config.input_shown}: all {len(asked):,} rows fail alike, the first in {first.place}: "
        f"{errors[0].marked}{about_columns}"
    )


def _columns_of(rows: Iterable[Row]) -> str:
    """Return the sentence that lists the columns and ways to make a prompt of them."""
    texts: dict[str, bool] = {}
    for row in rows:
        used = id_column(row.columns)
        for name, value in row.columns.items():
            if name != used:
                texts[name] = texts.get(name, False) or isinstance(value, str)
    if not texts:
        return ""
    usual = [name for name in _USUAL if texts.get(name)]
    best = next(iter([*usual, *(name for name, is_text in texts.items() if is_text)]), None)
    return f"; its columns are {_listed(list(texts))}{_way_out(best)}"


def _listed(columns: Sequence[str]) -> str:
    """Return a shortened list of column names."""
    shown = ", ".join(shown_key(name) for name in columns[:_MAX_NAMED])
    more = f" and {len(columns) - _MAX_NAMED} more" if len(columns) > _MAX_NAMED else ""
    return shown + more


def _way_out(column: str | None) -> str:
    """Return the flags that make a prompt of a column."""
    if column is None:
        return ""
    field = f"; pass {option('prompt_field')} {shlex.quote(shown_key(column))}"
    if not column.isidentifier():
        return field
    return f"{field}, or {option('prompt_template')} '{{{{ {column} }}}}' with more around it"


MAX_SHOWN_DUPLICATES = 10


class UniqueIds:
    """Set of the ids so far, with position, at 32 bytes each; 1 and "1" are the same id.

    `source` is used in messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._digests = np.empty(0, _DIGEST)  # sorted
        self._places = np.empty((0, 2), np.int64)  # number of the input, and line, by digest
        self._files: dict[str | None, int] = {}

    def refuse_repeated(self, rows: Sequence[Row]) -> None:
        """Add rows; raise `UsageError` with line numbers if an id occurs twice."""
        repeated = self._add(rows)
        if repeated:
            shown = list(repeated.items())[:MAX_SHOWN_DUPLICATES]
            found = [f"{_shown(rows[i])} on {_both(first, rows[i])}" for i, first in shown]
            more = f" and {len(repeated) - len(found)} more" if len(repeated) > len(found) else ""
            raise UsageError(
                f"{self._source}: ids must be unique, but {'; '.join(found)}{more}; give each "
                "row its own id, or leave the column out"
            )

    def fail_repeated(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Add rows of later windows: a repeated id fails its row."""
        repeated = self._add(rows)
        for number, row in enumerate(rows):
            if number not in repeated or row.error is not None:
                yield row
            else:
                where = _where(repeated[number], row)
                message = f"ids must be unique, but {_shown(row)} is that of {where} too"
                yield replace(
                    row, error=RowError("duplicate_id", message, param="id", line=row.line)
                )

    def _add(self, rows: Sequence[Row]) -> dict[int, Position]:
        """Add rows; return the position of the first row with the same id, by the number in `rows`
        of each row that repeats one."""
        known = len(self._digests)
        places = [(self._files.setdefault(row.file, len(self._files)), row.line) for row in rows]
        digests = np.concatenate((self._digests, np.array(list(map(_digest, rows)), _DIGEST)))
        order = np.argsort(digests, kind="stable")  # the first row of an id comes first
        digests = digests[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = digests[1:] != digests[:-1]
        self._places = np.concatenate((self._places, np.array(places, np.int64).reshape(-1, 2)))
        self._places = self._places[order[is_first]]
        self._digests = digests[is_first]
        again = np.flatnonzero(~is_first)
        firsts = np.cumsum(is_first)[again] - 1
        names = list(self._files)
        found: dict[int, Position] = {}
        for number, (file, line) in zip(order[again] - known, self._places[firsts], strict=True):
            name = names[file]
            found[int(number)] = int(line) if name is None else (name, int(line))
        return dict(sorted(found.items()))


_DIGEST = np.dtype("S16")


def _digest(row: Row) -> bytes:
    return hashlib.blake2b(str(row.id).encode("utf-8", "replace"), digest_size=16).digest()


def _where(position: Position, row: Row) -> str:
    return (
        f"{row.unit} {position}"
        if isinstance(position, int)
        else f"{position[0]}, {row.unit} {position[1]}"
    )


def _both(first: Position, row: Row) -> str:
    if isinstance(first, int):
        return f"{row.unit}s {first} and {row.line}"
    return f"{_where(first, row)} and {row.place}"


def _shown(row: Row) -> str:
    name = str(row.id)
    return repr(name if len(name) <= 40 else name[:39] + "…")
