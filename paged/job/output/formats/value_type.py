"""The types of JSON values, found by looking at them, and what two of them have in common."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pagedrun.paged.values.json_value import JSONValue

MAX_FIELDS = 1000  # an object with more keys is a table of its own, and is written as text
MAX_DEPTH = 32
_EXACT = 2**53  # integers up to it are exact as doubles
_INT64 = 2**63


class Plain(Enum):
    """A type without parts."""

    NULL = "null"  # nothing is known of it
    BOOLEAN = "boolean"
    INTEGER = "integer"
    LONG = "long"  # integers beyond what a double holds
    NUMBER = "number"
    TEXT = "text"
    NAME = "name"  # text, and integers as their digits
    JSON = "json"  # of more than one type: its JSON text


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    element: "ValueType"


@dataclass(frozen=True, slots=True)
class StructOf:
    """An object by its keys. Those in `optional` are only there where a value has them."""

    fields: Mapping[str, "ValueType"] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()


ValueType = Plain | ListOf | StructOf


def base_of(known: ValueType | None) -> ValueType:
    """Return a type that is known, without what is optional in it."""
    match known:
        case None:
            return Plain.NULL
        case ListOf(element):
            return ListOf(base_of(element))
        case StructOf(fields, optional):
            kept = {name: base_of(each) for name, each in fields.items() if name not in optional}
            return StructOf(kept)
    return known


def type_of(value: JSONValue, known: ValueType | None = None, depth: int = 0) -> ValueType:
    """Return the type of a value. What is `known` of it is taken for granted: only what is
    optional there is looked for."""
    if value is None:
        return Plain.NULL
    if known is not None and not _is_open(known):
        return known
    if isinstance(value, dict) and not isinstance(known, ListOf):
        if len(value) > MAX_FIELDS or depth > MAX_DEPTH:
            return Plain.JSON
        of = known.fields if isinstance(known, StructOf) else {}
        return StructOf(
            {name: type_of(each, of.get(name), depth + 1) for name, each in value.items()}
        )
    if isinstance(value, list):
        if depth > MAX_DEPTH:
            return Plain.JSON
        of_each = known.element if isinstance(known, ListOf) else None
        element: ValueType = Plain.NULL
        for each in value:
            element = common(element, type_of(each, of_each, depth + 1))
        return ListOf(element)
    return _plain_type(value)


def common(one: ValueType, other: ValueType) -> ValueType:
    """Return the type that holds values of both; where there is none, `Plain.JSON`."""
    if one == other or other is Plain.NULL:
        return one
    if one is Plain.NULL:
        return other
    if isinstance(one, ListOf) and isinstance(other, ListOf):
        return ListOf(common(one.element, other.element))
    if isinstance(one, StructOf) and isinstance(other, StructOf):
        fields = dict(one.fields)
        for name, each in other.fields.items():
            fields[name] = common(fields.get(name, Plain.NULL), each)
        return StructOf(fields) if len(fields) <= MAX_FIELDS else Plain.JSON
    both = {one, other} if isinstance(one, Plain) and isinstance(other, Plain) else set()
    for pair, found in _COMMON.items():
        if both == set(pair):
            return found
    return Plain.JSON


def is_as_it_is(kind: ValueType) -> bool:
    """Whether values of this type need no `convert`."""
    match kind:
        case ListOf(element):
            return is_as_it_is(element)
        case StructOf(fields):
            return bool(fields) and all(map(is_as_it_is, fields.values()))
    return kind not in (Plain.NAME, Plain.JSON)


def convert(value: JSONValue, kind: ValueType) -> JSONValue:
    """Return a value as a table has it: where its type is `JSON`, or an object of which no key is
    known, its JSON text."""
    if value is None:
        return None
    match kind:
        case ListOf(element) if isinstance(value, list):
            return [convert(each, element) for each in value]
        case StructOf(fields) if isinstance(value, dict) and fields:
            return {name: convert(value.get(name), each) for name, each in fields.items()}
        case Plain.NAME if isinstance(value, str):
            return value
        case Plain.JSON | Plain.NAME | StructOf():
            return json_text(value)
    return value


def json_text(value: JSONValue) -> str:
    """Return a value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


_COMMON = {
    (Plain.INTEGER, Plain.LONG): Plain.LONG,
    (Plain.INTEGER, Plain.NUMBER): Plain.NUMBER,
}


def _plain_type(value: JSONValue) -> Plain:
    match value:
        case bool():
            return Plain.BOOLEAN
        case int():
            if abs(value) <= _EXACT:
                return Plain.INTEGER
            return Plain.LONG if -_INT64 <= value < _INT64 else Plain.JSON
        case float():
            return Plain.NUMBER
    return Plain.TEXT


def _is_open(known: ValueType) -> bool:
    """Whether there is something optional in a type."""
    match known:
        case ListOf(element):
            return _is_open(element)
        case StructOf(fields, optional):
            return bool(optional) or any(map(_is_open, fields.values()))
    return False
