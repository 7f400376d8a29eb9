"""Strict parser of JSON rows, whose values can be written back as JSON in UTF-8.

Python's own parser accepts NaN, keeps the last of two equal keys, accepts lone surrogates and turns
1e999 into infinity. Each of these would give a wrong answer, or fail hours later when the output is
written.
"""

import json
import math
import re

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import sampling_keys

MAX_DEPTH = 200  # of nested lists and objects; far below the interpreter's recursion limit
MAX_SHOWN_KEY = 64
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)


def parse_object(text: str) -> dict[str, JSONValue]:
    """Return the JSON object in `text`.

    Raises `RowError`: `invalid_json_line` for anything but one JSON object, `duplicate_key`,
    `invalid_unicode` for half of a surrogate pair, `invalid_param` for a sampling field without a
    finite number.
    """
    value = parse_value(text)
    if not isinstance(value, dict):
        raise _invalid(f"expected an object, found {_json_type(value)}")
    return value


def parse_value(text: str) -> JSONValue:
    """Return the JSON value in `text`; raises as `parse_object` does."""
    reader = _StrictReader()
    try:
        value: JSONValue = json.loads(
            text,
            object_pairs_hook=reader.pairs,
            parse_float=reader.number,
            parse_constant=reader.number,
        )
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # the end of some of Python's messages
        raise _invalid(f"not valid JSON: {what} at column {error.colno}") from error
    except RecursionError as error:
        raise _invalid(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # an integer beyond the interpreter's limit of digits
        raise _invalid("an integer has too many digits") from error
    if reader.saw_non_finite:
        raise _invalid("NaN, Infinity and numbers beyond a double are not allowed")
    if _is_too_deep(text):
        raise _invalid(f"nested deeper than {MAX_DEPTH} levels")
    if "\\u" in text:  # strict UTF-8 has no surrogates, so only an escape can bring one in
        _refuse_lone_surrogates(value)
    return value


class _StrictReader:
    """Hooks of one parse, and the errors they found."""

    def __init__(self) -> None:
        self.saw_non_finite = False

    def number(self, literal: str) -> float:
        value = float(literal)
        self.saw_non_finite = self.saw_non_finite or not math.isfinite(value)
        return value

    def pairs(self, pairs: list[tuple[str, JSONValue]]) -> dict[str, JSONValue]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    shown = shown_key(key)
                    raise RowError(
                        "duplicate_key",
                        f"the key {shown!r} occurs twice in one object",
                        param=shown,
                    )
                seen.add(key)
        if self.saw_non_finite:
            self._refuse_non_finite_param(pairs)
        return result

    def _refuse_non_finite_param(self, pairs: list[tuple[str, JSONValue]]) -> None:
        for key, value in pairs:
            if key in sampling_keys() and isinstance(value, float) and not math.isfinite(value):
                raise RowError("invalid_param", f"{key} must be a finite number", param=key)


def shown_key(key: str) -> str:
    """Return `key` for a message: short, on one line, and valid UTF-8."""
    cut = key if len(key) <= MAX_SHOWN_KEY else key[: MAX_SHOWN_KEY - 1] + "…"
    text = cut.encode("utf-8", "replace").decode("utf-8")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _invalid(reason: str) -> RowError:
    return RowError("invalid_json_line", reason)


def _json_type(value: object) -> str:
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "a string"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "a number"


def _is_too_deep(text: str) -> bool:
    """Return true if brackets outside strings nest deeper than `MAX_DEPTH`, without recursion."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[1]:
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif match[2]:
            depth -= 1
    return False


def _refuse_lone_surrogates(value: JSONValue) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError(
            "invalid_unicode", "a string holds half of a surrogate pair (\\ud800 to \\udfff)"
        ) from error
