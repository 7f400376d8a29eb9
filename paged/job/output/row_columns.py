"""Columns of output rows: `--columns`, `--flatten`, `--explode-json` and the columns of tables."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pagedrun.paged.job.inputs.json_line import parse_value, shown_key
from pagedrun.paged.job.inputs.row import InputFacts
from pagedrun.paged.job.output.column_types import (
    ANSWER,
    ANSWERS,
    ERROR,
    FINISH_REASON,
    MAX_FIELDS,
    NAMES,
    ColumnType,
    InputStruct,
    InputType,
    ListOf,
    RowFormat,
    ScalarType,
    StructOf,
    ValueType,
    json_text,
)
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.structure import Structure

USAGE = "usage"
ALL = "all"
INPUT_PREFIX, JSON_PREFIX = "input.", "json."
OutputColumns = dict[str, JSONValue]


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Selected columns by name.

    Without names: columns of the input and the answer in a table; all keys of the row elsewhere, or
    if `is_whole`. A name is that of the answer's text (`answer`), a key of the output row or a path
    of keys and positions in it with dots between, such as `usage.prompt_tokens` or
    `outputs.0.text`; a key of an answer in JSON (`json.title`); or a column of the input. With
    `flatten`, the keys under `usage` and `input` are columns of their own: one of `input` with the
    name of another column, or that begins with `input.`, gets the prefix `input.`. `explodes` adds
    a column for each key of answers that are JSON objects. `format` is that of the output's rows.
    """

    names: tuple[str, ...] = ()
    flatten: bool = False
    is_table: bool = False
    answer: str = ANSWER
    explodes: bool = False
    is_whole: bool = False
    format: RowFormat = ANSWERS

    @classmethod
    def parse(
        cls,
        texts: Sequence[str],
        *,
        flatten: bool = False,
        is_table: bool = False,
        answer: str = ANSWER,
        explodes: bool = False,
        format: RowFormat = ANSWERS,
    ) -> "RowColumns":
        """Parse names with commas between; `UsageError` for duplicates and names that no row can
        have.
        """
        names = tuple(name.strip() for text in texts for name in text.split(","))
        for index, name in enumerate(names):
            if not name:
                raise _refused("a name is missing between two commas")
            if name in names[:index]:
                raise _refused(f"{shown_key(name)} is named twice")
            if name == ALL and len(names) > 1:
                raise _refused(
                    f"{ALL} means all keys of the output row and cannot be combined with other "
                    f"names; for a column of the input with this name, use {INPUT_PREFIX}{ALL}"
                )
            if not flatten:
                _check(name, answer, format)
        is_whole = names == (ALL,) or (flatten and not names)
        named = () if is_whole else names
        return cls(named, flatten, is_table, answer, explodes, is_whole, format)

    @property
    def includes_input(self) -> bool:
        """True if the columns are those of the input and of the answer."""
        return self.is_table and not self.names and not self.is_whole

    @property
    def is_identity(self) -> bool:
        """True if the columns are the row's keys."""
        return not (self.names or self.flatten or self.includes_input or self.explodes)

    @property
    def has_answer(self) -> bool:
        """True if the answer's text is a column under its given name."""
        return self.format.has_answers and (self.includes_input or self.answer in self.names)

    @property
    def has_json(self) -> bool:
        """True if answers are parsed as JSON."""
        return self.explodes or any(map(self.is_json, self.names))

    def is_json(self, name: str) -> bool:
        """Return true if a name is that of a key of answers in JSON."""
        return self.format.has_answers and name.startswith(JSON_PREFIX)

    def check(
        self,
        rows: Iterable[OutputColumns],
        facts: InputFacts,
        structure: Structure | None,
        *,
        is_all: bool,
    ) -> list[str]:
        """Return warnings about names that the input's columns have too.

        rows: the columns of the input's first rows, all of them if `is_all`. Raises `UsageError`
        for a column that no row has, and if one of the input has the name of the answer's.
        """
        if not (self.names or self.includes_input):
            return []
        given: dict[str, None] = dict.fromkeys(facts.columns or ())
        missing = {name: path_in_input(name) for name in self.names if self.is_of_input(name)}
        for row in rows:
            given.update(dict.fromkeys(row))
            for name, path in list(missing.items()):
                if follow(row, path) is not MISSING:
                    del missing[name]
        self._refuse_answer(given)
        if is_all or facts.columns is not None:
            for name in missing:
                raise _refused(self._unknown(name, list(given)))
        self._refuse_json_keys(structure)
        return [*self._renamed(given), *self._hidden(given)]

    def ours(self, given: Iterable[str]) -> dict[str, str]:
        """Return the result's columns of a table by content: names that no input column has."""
        taken = set(given)
        return {
            content: self._free(self.answer if content == ANSWER else content, taken)
            for content in self.format.contents
        }

    def _free(self, name: str, taken: set[str]) -> str:
        while name in taken:
            name = f"{self.format.prefix or self.answer}_{name}"
        return name

    def is_of_input(self, name: str) -> bool:
        """Return true if a name is that of a column of the input."""
        key = name.split(".")[0]
        if (self.format.has_answers and name == self.answer) or self.is_json(name):
            return False
        if key == INPUT:
            return name != INPUT
        return key not in self.format.all_keys and not (self.flatten and name in self.format.usage)

    def _refuse_answer(self, given: Mapping[str, None]) -> None:
        if self.answer in given and self.has_answer:
            raise UsageError(
                f"the input has a column {shown_key(self.answer)} of its own; set another name "
                f"for the answers with {option('answer_column')}, such as "
                f"{option('answer_column')} model_{shown_key(self.answer)}",
                field="answer_column",
            )

    def _refuse_json_keys(self, structure: Structure | None) -> None:
        """Refuse keys of JSON answers that the run's own schema does not have."""
        keys = _schema_keys(structure)
        if keys is None:
            return
        for name in self.names:
            key = name.removeprefix(JSON_PREFIX).split(".")[0]
            if name.startswith(JSON_PREFIX) and key not in keys:
                raise _refused(
                    f"{option('json_schema')} has no {shown_key(key)}, so that no answer has "
                    f"{shown_key(name)}; it has {_listed(keys)}{_meant(key, keys, JSON_PREFIX)}"
                )

    def _renamed(self, given: Mapping[str, None]) -> Iterator[str]:
        if self.includes_input:
            for name, ours in self.ours(given).items():
                if ours not in (name, self.answer):
                    yield (
                        f"the input has a column {name} of its own, which is kept; the one of "
                        f"the {'answers' if self.format.has_answers else 'results'} is called "
                        f"{ours}"
                    )

    def _hidden(self, given: Mapping[str, None]) -> Iterator[str]:
        for name in self.names:
            if name in given and name in self.format.all_keys and name not in (*NAMES, INPUT):
                yield (
                    f"{option('columns')}: {name} is the one of the output row; for the input's "
                    f"column use {INPUT_PREFIX}{name}"
                )

    def _unknown(self, name: str, given: Sequence[str]) -> str:
        keys = (
            [self.answer, *self.format.all_keys]
            if self.format.has_answers
            else self.format.all_keys
        )
        known = [*given, *keys]
        if name.startswith(INPUT_PREFIX):
            known = [f"{INPUT_PREFIX}{each}" for each in given]
        json = f", and JSON answers have keys such as {JSON_PREFIX}title"
        return (
            f"there is no column {shown_key(name)}{_meant(name, known) or ';'} the input has "
            f"{_listed(given)}, the output row {', '.join(keys)}"
            f"{json if self.format.has_answers else ''}"
        )


def path_in_input(name: str) -> str:
    """Return the path of an input column in the input, without the prefix `input.`."""
    return name.removeprefix(INPUT_PREFIX)


def _check(name: str, answer: str, format: RowFormat) -> None:
    """Refuse a path that is invalid for all rows."""
    key, *rest = name.split(".")
    if format.has_answers and key == answer and name != answer:
        key = "text"
    if not rest or key not in format.all_keys:
        return
    hint = ""
    if key == "text":
        asked = shown_key(f"{JSON_PREFIX}{'.'.join(rest)}")
        hint = f"; did you mean {asked}, a key of JSON answers?"
    known: ValueType | None = ScalarType.NAME if key in NAMES else format.row.fields.get(key)
    path = key
    for part in rest:
        match known:
            case StructOf(fields):
                if part not in fields:
                    raise _refused(
                        f"{path} has no {shown_key(part)}; it has {', '.join(fields)}"
                        f"{_meant(part, fields, f'{path}.')}"
                    )
                known = fields[part]
            case ListOf(element):
                if not part.isdecimal():
                    raise _refused(
                        f"{path} is a list; use an index, such as {path}.0.{shown_key(part)}"
                    )
                known = element
            case ScalarType.JSON | None:
                return
            case _:
                raise _refused(f"{path} has no parts, so no row has {shown_key(name)}{hint}")
        path = f"{path}.{part}"


def _schema_keys(structure: Structure | None) -> list[str] | None:
    """Return the keys of an object that a JSON schema allows, None if it does not list them all."""
    if structure is None or structure.field != "json_schema":
        return None
    schema = json.loads(structure.text)
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return None
    open_by = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties")
    if any(schema.get(name) not in (None, False) for name in open_by):
        return None
    return list(schema["properties"])


def _meant(name: str, known: Iterable[str], prefix: str = "") -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {prefix}{shown_key(close[0])}?" if close else ""


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown_key, names[:most])) + more if names else "none"


def _refused(why: str) -> UsageError:
    return UsageError(f"{option('columns')}: {why}", field="columns")


class RowShaper:
    """Makes columns of journal rows, and collects warnings.

    `given` are the columns of the input, in order; `json_keys` those of JSON answers that become
    columns.
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
        self._ours = columns.ours(given) if columns.includes_input else {}
        taken = {*given, *self._ours.values()} if columns.includes_input else set(columns.names)
        names = [f"{JSON_PREFIX}{key}" for key in json_keys]
        added = zip(names, json_keys, strict=True)
        self._json_keys = {name: key for name, key in added if name not in taken}
        self._unseen = set(columns.names)
        self._num_answers = self._num_without_json = 0

    @property
    def names(self) -> tuple[str, ...] | None:
        """All columns in order, None if they depend on the rows."""
        if self._columns.includes_input:
            return (*self._given, *self._ours.values(), *self._json_keys)
        return (*self._columns.names, *self._json_keys) if self._columns.names else None

    def line(self, line: bytes) -> bytes:
        """Return the JSON line with the columns of the row in `line`."""
        return json_text(self.of(json.loads(line))).encode("utf-8", "replace") + b"\n"

    def of(self, written: OutputColumns) -> OutputColumns:
        """Return the columns of a row; missing ones are null."""
        row = RowParts(written)
        names = self._columns.names
        found: dict[str, Any] = {}
        if names:
            values = {name: self._look_up(row, name) for name in names}
            self._unseen -= {name for name, value in values.items() if value is not MISSING}
            found = {name: None if value is MISSING else value for name, value in values.items()}
        elif self._columns.includes_input:
            found = {name: row.given[name] for name in self._given if name in row.given}
            found |= {name: row.content(what) for what, name in self._ours.items()}
        else:
            format = self._columns.format
            found = _flattened(row.public, format) if self._columns.flatten else row.public
        if self._json_keys:
            answer = row.json_answer
            for name, key in self._json_keys.items():
                found[name] = answer.get(key) if isinstance(answer, dict) else None
        if self._columns.has_json and row.answer(ANSWER) is not None:
            self._num_answers += 1
            self._num_without_json += row.json_answer is MISSING
        return found

    def type_of(self, name: str) -> ValueType | InputType | None:
        """Return the type of a column in a table, None if it is inferred from the values."""
        if self._columns.includes_input and name in self._given:
            return InputType.column(self._schema, name)
        format = self._columns.format
        content = next((each for each, ours in self._ours.items() if ours == name), None)
        if content is not None:
            is_text = format.has_answers or content == ERROR
            return ScalarType.TEXT if is_text else format.known_type(content)
        if format.has_answers and name == self._columns.answer:
            return ScalarType.TEXT
        if name in self._columns.names and self._columns.is_of_input(name):
            return InputType.find(self._schema, path_in_input(name))
        if self._is_text(name):
            return ScalarType.TEXT
        if self._columns.flatten and not self._columns.names:
            kept = InputType.column(self._schema, path_in_input(name))
            if kept is not None and _column_name(path_in_input(name), format) == name:
                return kept
        return None if self.is_json(name) else format.known_type(name, flat=self._columns.flatten)

    def final_type(self, name: str, kind: ValueType | InputType) -> ColumnType:
        """Return the type of a column by the common type of its values."""
        if name in NAMES and kind is ScalarType.JSON:
            return ScalarType.NAME
        if name == INPUT and isinstance(kind, StructOf):
            return InputStruct.find(self._schema, kind)
        return kind

    def is_json(self, name: str) -> bool:
        """Return true if a column belongs to JSON answers."""
        return name in self._json_keys or (
            name in self._columns.names and self._columns.is_json(name)
        )

    def column_of(self, key: str) -> str | None:
        """Return the column with a key of the row, None if there is none."""
        if self._columns.includes_input:
            return self._ours.get(key)
        return key if key in self._columns.names or not self._columns.names else None

    def warnings(self) -> list[str]:
        """Return the warnings about the shaped rows."""
        told = []
        if self._unseen:
            told.append(f"{option('columns')}: no row has {', '.join(sorted(self._unseen))}")
        if self._num_without_json:
            told.append(
                f"{self._num_without_json:,} of {self._num_answers:,} answers are no JSON: their "
                f"columns {JSON_PREFIX}… are empty; {option('json_schema')} makes every answer one"
            )
        return told

    def _is_text(self, name: str) -> bool:
        """Return true if an object is written as text, since a table has one column for it."""
        return name == ERROR and self._columns.is_table and not self._columns.is_whole

    def _look_up(self, row: "RowParts", name: str) -> JSONValue | object:
        has_answers = self._columns.format.has_answers
        if has_answers and name == self._columns.answer:
            return row.answer(ANSWER)
        if self._is_text(name):
            return row.answer(ERROR)
        if self._columns.is_json(name):
            answer = row.json_answer
            if answer is MISSING:
                return MISSING
            return follow(answer, name.removeprefix(JSON_PREFIX))  # type: ignore[arg-type]
        if self._columns.flatten:
            flat = _flattened(row.public, self._columns.format)
            if name in flat:
                return flat[name]
        if name.startswith(INPUT_PREFIX):
            return follow(row.given, path_in_input(name))
        found = follow(row.public, name)
        if found is MISSING and has_answers and name in ("text", FINISH_REASON):
            return row.answer(ANSWER if name == "text" else name)  # of a row of a batch file
        return follow(row.given, name) if found is MISSING else found


def json_keys_of(rows: Iterable[OutputColumns]) -> tuple[list[str], bool]:
    """Return the keys of all JSON object answers, in order of their first answer.

    The second value tells whether there are more than a table may have columns.
    """
    keys: dict[str, None] = {}
    for row in rows:
        answer = RowParts(row).json_answer
        if isinstance(answer, dict):
            keys |= dict.fromkeys(answer)
            if len(keys) > MAX_FIELDS:
                return list(keys)[:MAX_FIELDS], True
    return list(keys), False


def _flattened(row: OutputColumns, format: RowFormat) -> OutputColumns:
    flat: OutputColumns = {}
    for key, value in row.items():
        if key == USAGE and isinstance(value, dict):
            flat |= value
        elif key == INPUT and isinstance(value, dict):
            flat |= {_column_name(name, format): each for name, each in value.items()}
        else:
            flat[key] = value
    return flat


def _column_name(name: str, format: RowFormat) -> str:
    clashes = name in format.keys or name in format.usage or name.startswith(INPUT_PREFIX)
    return f"{INPUT_PREFIX}{name}" if clashes else name


INPUT, USED = "input", "used"
VECTOR_DIGEST = "vector_digest"  # of the bytes in the file of vectors
_OF_JOURNAL = frozenset((USED, VECTOR_DIGEST))  # keys without a column
MISSING = object()
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n\s*```\s*", re.DOTALL)  # as quoted by chat models


class RowParts:
    """Views of a journal row: `public` is its form in other outputs, `given` are all columns of its
    input.
    """

    def __init__(self, row: OutputColumns) -> None:
        used, given = row.get(USED), row.get(INPUT)
        self.given: OutputColumns = given if isinstance(given, dict) else {}
        self.public = row
        if _OF_JOURNAL & row.keys():
            self.public = {name: each for name, each in row.items() if name not in _OF_JOURNAL}
        if isinstance(used, list):
            if "response" in row:
                del self.public[INPUT]
            else:
                left = {name: each for name, each in self.given.items() if name not in used}
                self.public[INPUT] = left
        self._json: JSONValue | object = None
        self._is_read = False

    @property
    def json_answer(self) -> JSONValue | object:
        """The answer parsed as JSON, also in a code fence of a chat model."""
        if not self._is_read:
            self._is_read, text = True, self.answer(ANSWER)
            self._json = MISSING if text is None else _json_value(text)
        return self._json

    def content(self, what: str) -> JSONValue:
        """Return a column of a table by its content."""
        if what in (ANSWER, FINISH_REASON, ERROR):
            return self.answer(what)
        return self.public.get(what)

    def answer(self, what: str) -> str | None:
        """Return text, finish reason or error of a row in either format."""
        if "response" not in self.public:
            value = self.public.get("text" if what == ANSWER else what)
            return _error_text(value) if isinstance(value, dict) else value  # type: ignore[return-value]
        body = follow(self.public, "response.body")
        if what == ERROR:
            error = follow(body, ERROR)  # type: ignore[arg-type]
            return _error_text(error) if isinstance(error, dict) else None
        paths = ("message.content", "text") if what == ANSWER else (what,)
        found = [follow(body, f"choices.0.{path}") for path in paths]  # type: ignore[arg-type]
        return next((each for each in found if isinstance(each, str)), None)


def _json_value(text: str) -> JSONValue | object:
    fenced = _FENCED.fullmatch(text)
    try:
        return parse_value(text if fenced is None else fenced[1])
    except RowError:
        return MISSING


def _error_text(error: OutputColumns) -> str:
    return f"{error.get('code')}: {error.get('message')}"


def follow(value: JSONValue, path: str) -> JSONValue | object:
    """Return the value at a path. Keys that contain dots are tried first."""
    if isinstance(value, list):
        index, _, rest = path.partition(".")
        if not index.isdecimal() or not index.isascii() or int(index[:9]) >= len(value):
            return MISSING
        found = value[int(index[:9])]
        return follow(found, rest) if rest else found
    if not isinstance(value, dict):
        return MISSING
    if path in value:
        return value[path]
    end = len(path)
    while (end := path.rfind(".", 0, end)) > 0:
        if path[:end] in value:
            return follow(value[path[:end]], path[end + 1 :])
    return MISSING
