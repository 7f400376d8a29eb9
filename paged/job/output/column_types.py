"""Types of output columns: known from the row format, kept from the input, or inferred from values.

Rows are JSON during a run; columns of Arrow inputs come back as they were in Parquet.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from pagedrun.paged.job.output.output_row import BatchRow, OutputRow, Usage
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.pooling import PoolingParams, Task, VectorType

MAX_FIELDS = 1000  # an object with more keys is a table of its own, and is written as text
MAX_DEPTH = 32
_EXACT = 2**53  # largest integer that is exact as a double
_INT64 = 2**63


class ScalarType(Enum):
    """Type without parts."""

    NULL = "null"  # unknown
    BOOLEAN = "boolean"
    INTEGER = "integer"
    LONG = "long"  # integers beyond doubles
    NUMBER = "number"
    TEXT = "text"
    NAME = "name"  # text, and integers as their digits
    JSON = "json"  # of several types: its JSON text


@dataclass(frozen=True, slots=True)
class ListOf:
    """Type of lists."""

    element: "ValueType"


@dataclass(frozen=True, slots=True)
class StructOf:
    """Type of objects by their keys. Keys in `optional` are present only in values that
    have them.
    """

    fields: Mapping[str, "ValueType"] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()


ValueType = ScalarType | ListOf | StructOf


def required_part(known: ValueType | None) -> ValueType:
    """Return a known type without its optional keys."""
    match known:
        case None:
            return ScalarType.NULL
        case ListOf(element):
            return ListOf(required_part(element))
        case StructOf(fields, optional):
            kept = {
                name: required_part(each) for name, each in fields.items() if name not in optional
            }
            return StructOf(kept)
    return known


def type_of(value: JSONValue, known: ValueType | None = None, depth: int = 0) -> ValueType:
    """Return the type of a value. The `known` part is not checked: only optional keys are
    inferred.
    """
    if value is None:
        return ScalarType.NULL
    if known is not None and not _is_open(known):
        return known
    if isinstance(value, dict) and not isinstance(known, ListOf):
        if len(value) > MAX_FIELDS or depth > MAX_DEPTH:
            return ScalarType.JSON
        of = known.fields if isinstance(known, StructOf) else {}
        return StructOf(
            {name: type_of(each, of.get(name), depth + 1) for name, each in value.items()}
        )
    if isinstance(value, list):
        if depth > MAX_DEPTH:
            return ScalarType.JSON
        of_each = known.element if isinstance(known, ListOf) else None
        element: ValueType = ScalarType.NULL
        for each in value:
            element = common(element, type_of(each, of_each, depth + 1))
        return ListOf(element)
    return _plain_type(value)


def common(one: ValueType, other: ValueType) -> ValueType:
    """Return the type that holds values of both; without one, `ScalarType.JSON`."""
    if one == other or other is ScalarType.NULL:
        return one
    if one is ScalarType.NULL:
        return other
    if isinstance(one, ListOf) and isinstance(other, ListOf):
        return ListOf(common(one.element, other.element))
    if isinstance(one, StructOf) and isinstance(other, StructOf):
        fields = dict(one.fields)
        for name, each in other.fields.items():
            fields[name] = common(fields.get(name, ScalarType.NULL), each)
        return StructOf(fields) if len(fields) <= MAX_FIELDS else ScalarType.JSON
    both = {one, other} if isinstance(one, ScalarType) and isinstance(other, ScalarType) else set()
    for pair, found in _COMMON.items():
        if both == set(pair):
            return found
    return ScalarType.JSON


def needs_no_conversion(kind: ValueType) -> bool:
    """Return true if values of this type need no `convert`."""
    match kind:
        case ListOf(element):
            return needs_no_conversion(element)
        case StructOf(fields):
            return bool(fields) and all(map(needs_no_conversion, fields.values()))
    return kind not in (ScalarType.NAME, ScalarType.JSON)


def convert(value: JSONValue, kind: ValueType) -> JSONValue:
    """Return a value for a table: of type `JSON`, or an object without known keys, as JSON text."""
    if value is None:
        return None
    match kind:
        case ListOf(element) if isinstance(value, list):
            return [convert(each, element) for each in value]
        case StructOf(fields) if isinstance(value, dict) and fields:
            return {name: convert(value.get(name), each) for name, each in fields.items()}
        case ScalarType.NAME if isinstance(value, str):
            return value
        case ScalarType.JSON | ScalarType.NAME | StructOf():
            return json_text(value)
    return value


def json_text(value: JSONValue) -> str:
    """Return a value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


_COMMON = {
    (ScalarType.INTEGER, ScalarType.LONG): ScalarType.LONG,
    (ScalarType.INTEGER, ScalarType.NUMBER): ScalarType.NUMBER,
}


def _plain_type(value: JSONValue) -> ScalarType:
    match value:
        case bool():
            return ScalarType.BOOLEAN
        case int():
            if abs(value) <= _EXACT:
                return ScalarType.INTEGER
            return ScalarType.LONG if -_INT64 <= value < _INT64 else ScalarType.JSON
        case float():
            return ScalarType.NUMBER
    return ScalarType.TEXT


def _is_open(known: ValueType) -> bool:
    """Return true if a type has optional keys."""
    match known:
        case ListOf(element):
            return _is_open(element)
        case StructOf(fields, optional):
            return bool(optional) or any(map(_is_open, fields.values()))
    return False


_OF_JOURNAL = "used"  # only there
OUTPUT_KEYS = tuple(each.name for each in fields(OutputRow) if each.name != _OF_JOURNAL)
_BATCH_KEYS = [each.name for each in fields(BatchRow) if each.name != _OF_JOURNAL]
USAGE_KEYS = tuple(each.name for each in fields(Usage))

_CHOSEN = {
    "token_id": ScalarType.INTEGER,
    "text": ScalarType.TEXT,
    "logprob": ScalarType.NUMBER,
    "rank": ScalarType.INTEGER,
}
_LOGPROBS = ListOf(StructOf({**_CHOSEN, "top": ListOf(StructOf(_CHOSEN))}))
_OUTPUT = StructOf(
    {
        "index": ScalarType.INTEGER,
        "text": ScalarType.TEXT,
        "token_ids": ListOf(ScalarType.INTEGER),
        "finish_reason": ScalarType.TEXT,
        "stop_reason": ScalarType.NAME,
        "cumulative_logprob": ScalarType.NUMBER,
        "logprobs": _LOGPROBS,
        "reasoning": ScalarType.TEXT,
        "beam_score": ScalarType.NUMBER,
    },
    optional=frozenset({"reasoning", "beam_score"}),
)
_USAGE = StructOf(
    {
        name: ScalarType.BOOLEAN if name == "max_tokens_clamped" else ScalarType.INTEGER
        for name in USAGE_KEYS
    }
)
_ERROR = StructOf(
    {
        "code": ScalarType.TEXT,
        "message": ScalarType.TEXT,
        "param": ScalarType.TEXT,
        "line": ScalarType.INTEGER,
    }
)
_SCORE = StructOf(
    {
        "text": ScalarType.TEXT,
        "logprob": ScalarType.NUMBER,
        "num_tokens": ScalarType.INTEGER,
        "is_greedy": ScalarType.BOOLEAN,
        "token_logprobs": ListOf(ScalarType.NUMBER),
    }
)
_VOTE = StructOf(
    {"winner": ScalarType.TEXT, "counts": ScalarType.JSON, "drawn": ScalarType.INTEGER}
)
ROW = StructOf(
    {
        "index": ScalarType.INTEGER,
        "text": ScalarType.TEXT,
        "finish_reason": ScalarType.TEXT,
        "outputs": ListOf(_OUTPUT),
        "usage": _USAGE,
        "error": _ERROR,
        "prompt_logprobs": _LOGPROBS,
        "scores": ListOf(_SCORE),
        "vote": _VOTE,
    }
)
NAMES = ("id", "custom_id")  # texts, integers, or both
ANSWER, FINISH_REASON, ERROR = "answer", "finish_reason", "error"
EMBEDDING, EMBEDDING_SCALE = "embedding", "embedding_scale"


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Keys of output rows in pagedrun's format, the types of those that have one, and the contents
    of a table beside the columns of the input.

    `prefix` begins the name of such a column if the input has one of its name; the answer's own
    name, if None.
    """

    keys: tuple[str, ...]
    row: StructOf
    contents: tuple[str, ...]
    prefix: str | None = None

    @property
    def has_answers(self) -> bool:
        """True if rows have the text of an answer."""
        return ANSWER in self.contents

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Keys of the rows, those of OpenAI batch files included."""
        return tuple(dict.fromkeys((*self.keys, *_BATCH_KEYS)))

    @property
    def usage(self) -> Mapping[str, ValueType]:
        """Keys under `usage`."""
        usage = self.row.fields["usage"]
        assert isinstance(usage, StructOf)
        return usage.fields

    def known_type(self, column: str, *, flat: bool = False) -> ValueType | None:
        """Return the type of a column of the output, None if it depends on the rows.

        column: a key, or a path of keys and positions with dots. flat: whether the keys of `usage`
        are columns.
        """
        if flat and column in self.usage:
            return self.usage[column]
        found: ValueType | None = self.row
        for part in column.split("."):
            match found:
                case StructOf(named):
                    found = named.get(part)
                case ListOf(element) if part.isdecimal():
                    found = element
                case _:
                    return None
        return found


ANSWERS = RowFormat(OUTPUT_KEYS, ROW, (ANSWER, FINISH_REASON, ERROR))


def _pooled(results: Mapping[str, ValueType | None]) -> RowFormat:
    """Return the format of rows with these results, by their types; None for one that depends on
    the model.
    """
    usage = StructOf(dict.fromkeys(("prompt_tokens", "truncated_tokens"), ScalarType.INTEGER))
    known = {name: each for name, each in results.items() if each is not None}
    fields = {"index": ScalarType.INTEGER, **known, "usage": usage, "error": _ERROR}
    keys = ("index", "id", *results, "usage", "input", "error")
    return RowFormat(keys, StructOf(fields), (*results, ERROR), prefix="output")


_VECTOR: dict[str, ValueType | None] = {EMBEDDING: ListOf(ScalarType.NUMBER)}
_INT8_VECTORS = _pooled({**_VECTOR, EMBEDDING_SCALE: ScalarType.NUMBER})
_POOLED: Mapping[Task, RowFormat] = {
    Task.EMBED: _pooled(_VECTOR),
    Task.RERANK: _pooled(
        {"results": ListOf(StructOf({"index": ScalarType.INTEGER, "score": ScalarType.NUMBER}))}
    ),
    Task.CLASSIFY: _pooled({"label": ScalarType.TEXT, "scores": None}),
}


def row_format(pooled: PoolingParams | None) -> RowFormat:
    """Return the format of the rows of answers (None), or of a task."""
    if pooled is None:
        return ANSWERS
    is_int8 = pooled.task is Task.EMBED and pooled.vector_type is VectorType.INT8
    return _INT8_VECTORS if is_int8 else _POOLED[pooled.task]


@dataclass(frozen=True, slots=True)
class InputType:
    """Column of an Arrow input, or a part of one, that comes back as it was.

    `field` is Arrow's: its type and whether it may be null. `path` are the keys from the column to
    the part.
    """

    field: Any
    path: tuple[str, ...]

    @classmethod
    def find(cls, schema: Any, path: str) -> "InputType | None":
        """Return the column of a table at a path of keys with dots between.

        None without one, for an item of a list, and for a type that Parquet does not have. Keys
        that contain dots are tried first.
        """
        keys: list[str] = []
        parts = {field.name: field for field in schema or ()}
        field, left = None, path
        while left:
            end = len(left)
            while end > 0 and left[:end] not in parts:
                end = left.rfind(".", 0, end)
            if end <= 0:
                return None
            key, left = left[:end], left[end + 1 :]
            is_nullable = field is not None and field.nullable
            field = parts[key]
            field = field.with_nullable(field.nullable or is_nullable)
            keys.append(key)
            parts = {each.name: each for each in _fields(field.type)}
        return cls(field, tuple(keys)) if field is not None and _has_parquet(field) else None

    @classmethod
    def column(cls, schema: Any, name: str) -> "InputType | None":
        """Return the column of a name, as `find` does for a path."""
        return cls.find(schema, name) if name in getattr(schema, "names", ()) else None

    def of(self, table: Any) -> Any:
        """Return the values in a table, as a chunked array."""
        from pyarrow import compute

        name, *inner = self.path
        column = table.column(name)
        return compute.struct_field(column, inner) if inner else column


@dataclass(frozen=True, slots=True)
class InputStruct:
    """Object of columns of the input, with those of an Arrow table as they were."""

    fields: "Mapping[str, ValueType | InputType]"

    @classmethod
    def find(cls, schema: Any, kind: StructOf) -> "InputStruct | StructOf":
        """Return the object with the columns that a table has, itself if it has none."""
        fields = {
            name: InputType.column(schema, name) or each for name, each in kind.fields.items()
        }
        has_any = any(isinstance(each, InputType) for each in fields.values())
        return cls(fields) if has_any else kind


ColumnType = ValueType | InputType | InputStruct


def _fields(kind: Any) -> Any:
    """Return the fields of a struct, none of another type."""
    from pyarrow import types

    return kind if types.is_struct(kind) else ()


def _has_parquet(field: Any) -> bool:
    """Return true if Parquet files can hold values of a type."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([field])
    try:
        parquet.write_table(schema.empty_table(), pyarrow.BufferOutputStream())
    except (pyarrow.ArrowException, NotImplementedError):
        return False
    return True
