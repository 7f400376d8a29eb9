"""RowColumns: the columns that are asked of an output row, and whether rows can have them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row_source import InputFacts
from pagedrun.paged.job.output.formats.row_parts import (
    ANSWER,
    ERROR,
    FINISH_REASON,
    INPUT,
    MISSING,
    OutputColumns,
    follow,
)
from pagedrun.paged.job.output.formats.row_types import (
    NAMES,
    OUTPUT_KEYS,
    ROW,
    ROW_KEYS,
    USAGE_KEYS,
)
from pagedrun.paged.job.output.formats.value_type import ListOf, Plain, StructOf, ValueType
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.structure import Structure

USAGE = "usage"
ALL = "all"
INPUT_PREFIX, JSON_PREFIX = "input.", "json."
RESERVED = frozenset((*OUTPUT_KEYS, *USAGE_KEYS))


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns by name; none for the columns of the input and of the answer in a table, and for
    all keys of the row elsewhere, or if `is_whole`.

    A name is that of the answer's text (`answer`), a key of the output row or a path of keys and
    places in it with dots between, such as `usage.prompt_tokens` or `outputs.0.text`; a key of an
    answer that is JSON (`json.title`); or a column of the input. With `flatten`, the keys under
    `usage` and `input` are columns of their own: one of `input` that has the name of another
    column, or begins with `input.`, has `input.` before it. `explodes` adds a column for each key
    of the answers that are JSON objects.
    """

    names: tuple[str, ...] = ()
    flatten: bool = False
    is_table: bool = False
    answer: str = ANSWER
    explodes: bool = False
    is_whole: bool = False

    @classmethod
    def parse(
        cls,
        texts: Sequence[str],
        *,
        flatten: bool = False,
        is_table: bool = False,
        answer: str = ANSWER,
        explodes: bool = False,
    ) -> "RowColumns":
        """Return what was typed, names with commas between; raises `UsageError` for a name that is
        there twice or that no row can have."""
        names = tuple(name.strip() for text in texts for name in text.split(","))
        for place, name in enumerate(names):
            if not name:
                raise _refused("a name is missing between two commas")
            if name in names[:place]:
                raise _refused(f"{shown_key(name)} is named twice")
            if name == ALL and len(names) > 1:
                raise _refused(
                    f"{ALL} means all keys of the output row and cannot be combined with other "
                    f"names; for a column of the input with this name, use {INPUT_PREFIX}{ALL}"
                )
            if not flatten:
                _check(name, answer)
        is_whole = names == (ALL,) or (flatten and not names)
        return cls(() if is_whole else names, flatten, is_table, answer, explodes, is_whole)

    @property
    def begins_with_input(self) -> bool:
        """Whether the columns are those of the input and of the answer."""
        return self.is_table and not self.names and not self.is_whole

    @property
    def takes_rows_as_they_are(self) -> bool:
        """Whether the columns are the row's keys."""
        return not (self.names or self.flatten or self.begins_with_input or self.explodes)

    @property
    def has_answer(self) -> bool:
        """Whether there is a column of the answer's text under the name that it is given."""
        return self.begins_with_input or self.answer in self.names

    @property
    def has_json(self) -> bool:
        """Whether answers are read as JSON."""
        return self.explodes or any(name.startswith(JSON_PREFIX) for name in self.names)

    def check(
        self,
        rows: Iterable[OutputColumns],
        facts: InputFacts,
        structure: Structure | None,
        *,
        is_all: bool,
    ) -> list[str]:
        """Return what to tell of names that the columns of the input have too.

        rows: the columns of the input's first rows, all there are if `is_all`. Raises `UsageError`
        for a column that no row has, and if one of the input has the name of the answer's.
        """
        if not (self.names or self.begins_with_input):
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
        """Return the columns of the answer in a table by what they hold: their names, which none
        of the input's has."""
        taken = set(given)
        return {
            ANSWER: self._free(self.answer, taken),
            FINISH_REASON: self._free(FINISH_REASON, taken),
            ERROR: self._free(ERROR, taken),
        }

    def _free(self, name: str, taken: set[str]) -> str:
        while name in taken:
            name = f"{self.answer}_{name}"
        return name

    def is_of_input(self, name: str) -> bool:
        """Whether a name is that of a column of the input."""
        key = name.split(".")[0]
        if name == self.answer or name.startswith(JSON_PREFIX):
            return False
        if key == INPUT:
            return name != INPUT
        return key not in ROW_KEYS and not (self.flatten and name in USAGE_KEYS)

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
        if self.begins_with_input:
            for name, ours in self.ours(given).items():
                if ours not in (name, self.answer):
                    yield (
                        f"the input has a column {name} of its own, which is kept; the one of "
                        f"the answers is called {ours}"
                    )

    def _hidden(self, given: Mapping[str, None]) -> Iterator[str]:
        for name in self.names:
            if name in given and name in ROW_KEYS and name not in (*NAMES, INPUT):
                yield (
                    f"{option('columns')}: {name} is the one of the output row; for the input's "
                    f"column use {INPUT_PREFIX}{name}"
                )

    def _unknown(self, name: str, given: Sequence[str]) -> str:
        known = [*given, self.answer, *ROW_KEYS]
        if name.startswith(INPUT_PREFIX):
            known = [f"{INPUT_PREFIX}{each}" for each in given]
        return (
            f"there is no column {shown_key(name)}{_meant(name, known) or ';'} the input has "
            f"{_listed(given)}, the output row {self.answer}, {', '.join(ROW_KEYS)}, and "
            f"JSON answers have keys such as {JSON_PREFIX}title"
        )


def path_in_input(name: str) -> str:
    """Return where a column of the input is there, be it named with `input.` or without."""
    return name.removeprefix(INPUT_PREFIX)


def _check(name: str, answer: str) -> None:
    """Refuse a path that cannot lead anywhere, whatever the rows are."""
    key, *rest = name.split(".")
    if key == answer and name != answer:
        key = "text"
    if not rest or key not in ROW_KEYS:
        return
    hint = ""
    if key == "text":
        asked = shown_key(f"{JSON_PREFIX}{'.'.join(rest)}")
        hint = f"; did you mean {asked}, a key of JSON answers?"
    known: ValueType | None = Plain.NAME if key in NAMES else ROW.fields.get(key)
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
            case Plain.JSON | None:
                return
            case _:
                raise _refused(f"{path} has no parts, so no row has {shown_key(name)}{hint}")
        path = f"{path}.{part}"


def _schema_keys(structure: Structure | None) -> list[str] | None:
    """Return the keys of an object that a JSON schema allows, None if it does not name them all."""
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
