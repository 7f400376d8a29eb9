"""What the fields take that give an answer its structure."""

import json

from pagedrun.paged.values.sampling.rules import is_unicode
from pagedrun.paged.values.sampling.structure import refuse_constant

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
    """Whether a value is None, or a text that may be compiled."""
    return value is None or (
        isinstance(value, str) and 0 < len(value) <= MAX_GRAMMAR_CHARS and is_unicode(value)
    )


def is_json_schema(value: object) -> bool:
    """Whether a value is None, or the text of a JSON schema that may be compiled."""
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
    """Whether a value is a tuple of texts, not too many and not too long."""
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
