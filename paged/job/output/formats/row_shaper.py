"""RowShaper: the columns of output rows, as a file or a stream has them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pagedrun.paged.job.output.formats.kept_types import KeptType, is_kept
from pagedrun.paged.job.output.formats.row_columns import (
    INPUT_PREFIX,
    JSON_PREFIX,
    RESERVED,
    USAGE,
    RowColumns,
    path_in_input,
)
from pagedrun.paged.job.output.formats.row_parts import (
    ANSWER,
    ERROR,
    FINISH_REASON,
    INPUT,
    MISSING,
    OutputColumns,
    RowParts,
    follow,
)
from pagedrun.paged.job.output.formats.row_types import known_type
from pagedrun.paged.job.output.formats.value_type import MAX_FIELDS, Plain, ValueType, json_text
from pagedrun.paged.values.errors import option
from pagedrun.paged.values.json_value import JSONValue


class RowShaper:
    """Makes columns of rows as the journal has them, and keeps what to tell of them.

    `given` are the columns of the input, in order; `json_keys` those of answers that are JSON,
    where each is a column.
    """

    def __init__(
        self,
        columns: RowColumns,
        given: Sequence[str] = (),
        json_keys: Sequence[str] = (),
        schema: Any = None,
    ) -> None:
        self._columns = columns
        self._given = tuple(given)
        self._schema = schema
        self._ours = columns.ours(given) if columns.begins_with_input else {}
        taken = {*given, *self._ours.values()} if columns.begins_with_input else set(columns.names)
        names = [f"{JSON_PREFIX}{key}" for key in json_keys]
        added = zip(names, json_keys, strict=True)
        self._json_keys = {name: key for name, key in added if name not in taken}
        self._unseen = set(columns.names)
        self._num_answers = self._num_without_json = 0

    @property
    def names(self) -> tuple[str, ...] | None:
        """All columns in order, None if they depend on the rows."""
        if self._columns.begins_with_input:
            return (*self._given, *self._ours.values(), *self._json_keys)
        return (*self._columns.names, *self._json_keys) if self._columns.names else None

    def line(self, line: bytes) -> bytes:
        """Return a line of JSON with the columns of the row in `line`."""
        return json_text(self.of(json.loads(line))).encode("utf-8", "replace") + b"\n"

    def of(self, written: OutputColumns) -> OutputColumns:
        """Return the columns of a row; what it does not have is null."""
        row = RowParts(written)
        names = self._columns.names
        found: dict[str, Any] = {}
        if names:
            values = {name: self._look_up(row, name) for name in names}
            self._unseen -= {name for name, value in values.items() if value is not MISSING}
            found = {name: None if value is MISSING else value for name, value in values.items()}
        elif self._columns.begins_with_input:
            found = {name: row.given[name] for name in self._given if name in row.given}
            found |= {name: row.answer(what) for what, name in self._ours.items()}
        else:
            found = _flattened(row.public) if self._columns.flatten else row.public
        if self._json_keys:
            answer = row.json_answer
            for name, key in self._json_keys.items():
                found[name] = answer.get(key) if isinstance(answer, dict) else None
        if self._columns.has_json and row.answer(ANSWER) is not None:
            self._num_answers += 1
            self._num_without_json += row.json_answer is MISSING
        return found

    def type_of(self, name: str) -> ValueType | KeptType | None:
        """Return the type of a column in a table, None if it is found by looking at its values."""
        if self._columns.begins_with_input and name in self._given:
            return self._kept(name)
        if name in self._ours.values() or name == self._columns.answer:
            return Plain.TEXT
        if name in self._columns.names and self._columns.is_of_input(name):
            return self._kept(path_in_input(name))
        if self._is_text(name):
            return Plain.TEXT
        return None if self.is_json(name) else known_type(name, flat=self._columns.flatten)

    def is_json(self, name: str) -> bool:
        """Whether a column is of answers that are JSON."""
        return name in self._json_keys or (
            name in self._columns.names and name.startswith(JSON_PREFIX)
        )

    def warnings(self) -> list[str]:
        """Return what to tell of the rows that were made columns of."""
        told = []
        if self._unseen:
            told.append(f"{option('columns')}: no row has {', '.join(sorted(self._unseen))}")
        if self._num_without_json:
            told.append(
                f"{self._num_without_json:,} of {self._num_answers:,} answers are no JSON: their "
                f"columns {JSON_PREFIX}… are empty; {option('json_schema')} makes every answer one"
            )
        return told

    def _kept(self, name: str) -> KeptType | None:
        """Return the type of a column of the input, if its table says it."""
        names = getattr(self._schema, "names", ())
        if name not in names:
            return None
        kind = self._schema.field(name).type
        return KeptType(kind) if is_kept(kind) else None

    def _is_text(self, name: str) -> bool:
        """Whether an object is written as a text, since a table has a column for it."""
        return name == ERROR and self._columns.is_table and not self._columns.is_whole

    def _look_up(self, row: "RowParts", name: str) -> JSONValue | object:
        if name == self._columns.answer:
            return row.answer(ANSWER)
        if self._is_text(name):
            return row.answer(ERROR)
        if name.startswith(JSON_PREFIX):
            answer = row.json_answer
            if answer is MISSING:
                return MISSING
            return follow(answer, name.removeprefix(JSON_PREFIX))  # type: ignore[arg-type]
        if self._columns.flatten and name in (flat := _flattened(row.public)):
            return flat[name]
        if name.startswith(INPUT_PREFIX):
            return follow(row.given, path_in_input(name))
        found = follow(row.public, name)
        if found is MISSING and name in ("text", FINISH_REASON):
            return row.answer(ANSWER if name == "text" else name)  # of a row of a batch file
        return follow(row.given, name) if found is MISSING else found


def public_row(row: OutputColumns) -> OutputColumns:
    """Return a row of the journal as it is written elsewhere: of the input what was not used."""
    return RowParts(row).public


def json_keys_of(rows: Iterable[OutputColumns]) -> tuple[list[str], bool]:
    """Return the keys of all answers that are JSON objects, in order of their first answer, and
    whether there are more than a table may have columns."""
    keys: dict[str, None] = {}
    for row in rows:
        answer = RowParts(row).json_answer
        if isinstance(answer, dict):
            keys |= dict.fromkeys(answer)
            if len(keys) > MAX_FIELDS:
                return list(keys)[:MAX_FIELDS], True
    return list(keys), False


def _flattened(row: OutputColumns) -> OutputColumns:
    flat: OutputColumns = {}
    for key, value in row.items():
        if key == USAGE and isinstance(value, dict):
            flat |= value
        elif key == INPUT and isinstance(value, dict):
            flat |= {_column_name(name): each for name, each in value.items()}
        else:
            flat[key] = value
    return flat


def _column_name(name: str) -> str:
    clashes = name in RESERVED or name.startswith(INPUT_PREFIX)
    return f"{INPUT_PREFIX}{name}" if clashes else name
