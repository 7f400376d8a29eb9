"""Types of output columns: known from the row format, kept from the input, or inferred from values.

Rows are JSON during a run; columns of Arrow inputs, such as timestamps, keep their type in Parquet.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import time
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


_UNITS = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}  # in a second


@dataclass(frozen=True, slots=True)
class InputType:
    """Arrow type of a column, kept from its input."""

    type: Any


def is_kept(kind: Any) -> bool:
    """Return true if values of an Arrow type can be restored from their JSON."""
    return _carrier(kind) is not None or _reader(kind) is not None


def array_of(values: Sequence[JSONValue], kind: Any) -> Any:
    """Return an Arrow array of type `kind` of JSON values."""
    import pyarrow

    carrier = _carrier(kind)
    if carrier is not None:
        return pyarrow.array(values, carrier).cast(kind)
    read = _reader(kind)
    assert read is not None
    return pyarrow.array([None if each is None else read(each) for each in values], kind)


def _carrier(kind: Any) -> Any:
    """Return the Arrow type of JSON values that Arrow casts to `kind`.

    None for nested types, because the cast changes their nulls, and for types without a cast from
    text.
    """
    import pyarrow
    from pyarrow import types

    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return kind
    if types.is_floating(kind):
        return pyarrow.float64()
    if types.is_dictionary(kind):
        return pyarrow.string() if types.is_string(kind.value_type) else None
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if is_text or types.is_timestamp(kind) or types.is_date(kind) or types.is_decimal(kind):
        return pyarrow.string()
    return None


def _reader(kind: Any) -> Callable[[Any], object] | None:
    """Return a function from a JSON value to a Python object for `kind`, None without one."""
    import pyarrow
    from pyarrow import types

    if types.is_time(kind):
        return time.fromisoformat
    if types.is_duration(kind):
        return lambda seconds: round(seconds * _UNITS[kind.unit])
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return base64.b64decode
    if types.is_struct(kind):
        readers = {each.name: _reader(each.type) for each in kind.fields}
        if not readers or None in readers.values():
            return None
        return lambda value: {name: _read(value.get(name), readers[name]) for name in readers}
    if types.is_list(kind) or types.is_large_list(kind):
        reader = _reader(kind.value_type)
        return None if reader is None else lambda value: [_read(each, reader) for each in value]
    carrier = _carrier(kind)
    if carrier is None or types.is_dictionary(kind):
        return None
    if carrier == pyarrow.string():
        return lambda text: pyarrow.scalar(text, carrier).cast(kind).as_py()
    return lambda value: value


def _read(value: JSONValue, reader: Callable[[Any], object] | None) -> object:
    return None if value is None or reader is None else reader(value)
