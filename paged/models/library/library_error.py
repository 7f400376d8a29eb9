"""What a library's own errors come to in a sentence of ours."""

import re

MAX_SHOWN = 200
# Of Hugging Face's checked dataclasses: a field of the wrong type, and fields that disagree.
_FIELD = re.compile(r"Validation error for field '(\w+)':")
_FIELDS = re.compile(r"Class validation error for validator '\w+':\s*\w+: (.*)")
_EXPECTED = re.compile(r"expected (?:a )?(\w+), got")
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "dict": "an object",
    "list": "a list",
    "tuple": "a list",
    "NoneType": "null",
}


def said(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says, cut to 200 characters.

    Of a field of the wrong type: its name, and what it must be.
    """
    text = str(error).strip()
    field = _FIELD.match(text)
    if field is not None:
        names = dict.fromkeys(_EXPECTED.findall(text))
        wanted = " or ".join(_TYPES[name] for name in names if name in _TYPES)
        return f"{field[1]} must be {wanted or 'another value'}"[:MAX_SHOWN]
    fields = _FIELDS.match(text)
    if fields is not None:
        return fields[1].replace("`", "")[:MAX_SHOWN]
    lines = text.splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:MAX_SHOWN]}"
