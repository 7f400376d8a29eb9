"""Structure: JSON schema, regular expression, grammar or choices that an answer must match."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedrun.paged.values.rules import is_unicode

# The sampling fields that ask for one, of which a request has at most one.
STRUCTURES = ("json_schema", "json_object", "regex", "choice", "grammar")
_ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class Structure:
    """Structure of an answer: its sampling `field`, and the value as `text`: a JSON schema, a
    regular expression, a Lark grammar, or the choices as a JSON list.

    Requests with equal structures share what is compiled from it.
    """

    field: str
    text: str

    @classmethod
    def of(cls, field: str, value: bool | str | Sequence[str]) -> "Structure":
        """Return the structure of a sampling field with this value."""
        if isinstance(value, str):
            return cls(field, value)
        return cls(field, _ANY_OBJECT if value is True else json.dumps(value))


def canonical_schema(value: object) -> object:
    """Return a JSON schema, given as text or as an object, as canonical text.

    The order of its keys, which the answer follows, is kept. Invalid JSON is returned unchanged, to
    be refused by the rule of the field.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            return value
    elif not isinstance(value, dict):
        return value
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return value


def refuse_constant(word: str) -> Any:
    """Raise `ValueError`: NaN and Infinity are Python's and not JSON's."""
    raise ValueError(f"{word} is not JSON")


MAX_GRAMMAR_CHARS = 65_536
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 1000

JSON_SCHEMA_WANTED = (
    f"a JSON schema, which is an object, of at most {MAX_GRAMMAR_CHARS:,} characters, nested "
    f"at most {MAX_SCHEMA_DEPTH} deep"
)
TEXT_WANTED = f"a text of 1 to {MAX_GRAMMAR_CHARS:,} Unicode characters"
CHOICE_WANTED = (
    f"a list of at most {MAX_CHOICES:,} non-empty texts with at most {MAX_GRAMMAR_CHARS:,} Unicode "
    "characters in all"
)


def is_grammar_text(value: object) -> bool:
    """Return true for None, or a text that may be compiled."""
    return value is None or (
        isinstance(value, str) and 0 < len(value) <= MAX_GRAMMAR_CHARS and is_unicode(value)
    )


def is_json_schema(value: object) -> bool:
    """Return true for None, or the text of a JSON schema that may be compiled."""
    if value is None:
        return True
    if not isinstance(value, str) or not is_grammar_text(value):
        return False
    try:
        schema = json.loads(value, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(schema, dict) and _is_shallow(schema)


def is_choice(value: object) -> bool:
    """Return true for a tuple of valid choices, within the limits of number and length."""
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_CHOICES
        and all(isinstance(text, str) and text and is_unicode(text) for text in value)
        and sum(map(len, value)) <= MAX_GRAMMAR_CHARS
    )


def _is_shallow(value: object) -> bool:
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return False
