"""RowColumns: which columns are made of an output row, and what they are called."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.output.formats.row_types import OUTPUT_KEYS, ROW, ROW_KEYS, USAGE_KEYS
from pagedrun.paged.job.output.formats.value_type import StructOf
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.option_names import option

INPUT, USAGE = "input", "usage"
OutputColumns = dict[str, JSONValue]
_RESERVED = frozenset((*OUTPUT_KEYS, *USAGE_KEYS))
_MISSING = object()


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns by name, none for all of them.

    A name is a key of the output row, or a path of keys and places in it with dots between, such
    as `usage.prompt_tokens` or `outputs.0.text`. With `flatten`, the keys under `usage` and `input`
    are columns of their own: one of `input` that has the name of another column, or begins with
    `input.`, has `input.` before it.
    """

    names: tuple[str, ...] = ()
    flatten: bool = False

    @classmethod
    def parse(cls, texts: Sequence[str], *, flatten: bool) -> "RowColumns":
        """Return what was typed, names with commas between; raises `UsageError` for a name that is
        there twice or that no row has."""
        names = tuple(name.strip() for text in texts for name in text.split(","))
        for place, name in enumerate(names):
            if not name:
                raise _refused("a name is missing between commas")
            if name in names[:place]:
                raise _refused(f"{shown_key(name)} is named twice")
            if not flatten:
                _check(name)
        return cls(names, flatten)

    @property
    def takes_rows_as_they_are(self) -> bool:
        """Whether the columns are the row's keys."""
        return not self.names and not self.flatten

    def of(self, row: OutputColumns) -> OutputColumns:
        """Return the columns of a row; what it does not have is null."""
        flat = _flattened(row) if self.flatten else row
        if not self.names:
            return flat
        found = {name: _look_up(flat, row, name) for name in self.names}
        return {name: None if value is _MISSING else value for name, value in found.items()}  # type: ignore[misc]

    def missing_in(self, row: OutputColumns, names: set[str]) -> set[str]:
        """Return those of `names` that the row does not have."""
        flat = _flattened(row) if self.flatten else row
        return {name for name in names if _look_up(flat, row, name) is _MISSING}


def _check(name: str) -> None:
    key, *rest = name.split(".")
    if key not in ROW_KEYS:
        raise _refused(
            f"rows have no {shown_key(key)}; they have {', '.join(ROW_KEYS)}, and columns of the "
            f"input are such as input.category"
        )
    known = ROW.fields.get(key)
    if rest and isinstance(known, StructOf) and rest[0] not in known.fields:
        raise _refused(f"{key} has no {shown_key(rest[0])}; it has {', '.join(known.fields)}")


def _refused(why: str) -> UsageError:
    return UsageError(f"{option('columns')}: {why}", field="columns")


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
    clashes = name in _RESERVED or name.startswith(f"{INPUT}.")
    return f"{INPUT}.{name}" if clashes else name


def _look_up(flat: OutputColumns, row: OutputColumns, name: str) -> JSONValue | object:
    return flat[name] if name in flat else _follow(row, name)


def _follow(value: JSONValue, path: str) -> JSONValue | object:
    """Return what a path leads to. Keys with dots of their own are tried whole first."""
    if isinstance(value, list):
        place, _, rest = path.partition(".")
        if not place.isdecimal() or not place.isascii() or int(place[:9]) >= len(value):
            return _MISSING
        found = value[int(place[:9])]
        return _follow(found, rest) if rest else found
    if not isinstance(value, dict):
        return _MISSING
    if path in value:
        return value[path]
    end = len(path)
    while (end := path.rfind(".", 0, end)) > 0:
        if path[:end] in value:
            return _follow(value[path[:end]], path[end + 1 :])
    return _MISSING
