"""Structure: the language that an answer has to be a sentence of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# The sampling fields that ask for one, of which a request has at most one.
STRUCTURES = ("json_schema", "json_object", "regex", "choice", "grammar")
_ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True, slots=True)
class Structure:
    """`field` is the sampling field that asks for it, `text` its value as text: a JSON schema, a
    regular expression, a Lark grammar, or the choices as a JSON list.

    Requests with equal structures share what is compiled from it.
    """

    field: str
    text: str

    @classmethod
    def of(cls, field: str, value: bool | str | Sequence[str]) -> "Structure":
        """Return what a sampling field with this value asks for."""
        if isinstance(value, str):
            return cls(field, value)
        return cls(field, _ANY_OBJECT if value is True else json.dumps(value))


def canonical_schema(value: object) -> object:
    """Return a JSON schema, given as text or as an object, in one form of text.

    The order of its keys is kept, since it is that of the answer's. What is no JSON is returned as
    it is, for the rule of its field to refuse.
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
