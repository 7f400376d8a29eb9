"""Strict parser of JSON rows, whose values can be written back as JSON in UTF-8.

Python's own parser keeps the last of two equal keys, accepts lone surrogates and turns 1e999 into
infinity. Each of these would give a wrong answer, or fail hours later when the output is written.
NaN and Infinity, which Python writes, are no JSON: a column with them is data for templates and
outputs, as in tables, and invalid where a number, a text or an object is asked for.
"""

import json
import math
import re
from typing import TypeGuard

from pagedrun.paged.job.inputs.row import ID_COLUMNS, Record
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import sampling_keys

MAX_DEPTH = 200  # of nested lists and objects; far below the interpreter's recursion limit
MAX_SHOWN_KEY = 64
NAN, INFINITIES = "NaN", ("-Infinity", "Infinity")  # texts of numbers; by sign
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)


def parse_record(text: str) -> Record:
    """Return the JSON object in `text` as a record.

    NaN, Infinity and -Infinity are their texts in outputs; in prompts NaN is null, a missing value.
    A number beyond a double is its text. A column with one of them is unfit.

    Raises `RowError`: `invalid_json_line` for anything but one JSON object, `duplicate_key`,
    `invalid_unicode` for half of a surrogate pair.
    """
    value, has_others = _parsed(text)
    if not isinstance(value, dict):
        raise _invalid(f"expected an object, found {_json_type(value)}")
    if not has_others:
        return Record(value)
    written = {name: _as_text(each, NAN) for name, each in value.items()}
    columns = {name: _as_text(each, None) for name, each in value.items()}
    unfit: dict[str, RowError] = {}
    for name, each in value.items():
        if not _has_other(each):
            continue
        unfit[name] = _unfit(name, each)
        if name in ID_COLUMNS:
            columns[name] = written[name]  # null would be none
    return Record(columns, written, unfit=unfit)


def parse_value(text: str) -> JSONValue:
    """Return the JSON value in `text`.

    Raises `RowError` as `parse_record` does, and for numbers that JSON or a double does not have.
    """
    value, has_others = _parsed(text)
    if has_others:
        raise _invalid("NaN, Infinity and numbers beyond a double are not allowed")
    return value


def _parsed(text: str) -> tuple[JSONValue, bool]:
    """Return the value in `text`, and true if it has numbers that JSON or a double does not have.

    Those beyond a double are `_BeyondDouble`.
    """
    reader = _StrictReader()
    try:
        value: JSONValue = json.loads(
            text,
            object_pairs_hook=reader.pairs,
            parse_float=reader.number,
            parse_constant=reader.constant,
        )
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # the end of some of Python's messages
        raise _invalid(f"not valid JSON: {what} at column {error.colno}") from error
    except RecursionError as error:
        raise _invalid(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # an integer beyond the interpreter's limit of digits
        raise _invalid("an integer has too many digits") from error
    if _is_too_deep(text):
        raise _invalid(f"nested deeper than {MAX_DEPTH} levels")
    if "\\u" in text:  # strict UTF-8 has no surrogates, so only an escape can bring one in
        _refuse_lone_surrogates(value)
    return value, reader.has_others


class _BeyondDouble(str):
    """Number that is infinite as a double, as it is written."""


class _StrictReader:
    """Hooks of one parse; `has_others` is set by numbers that JSON or a double does not have."""

    def __init__(self) -> None:
        self.has_others = False

    def number(self, literal: str) -> float | _BeyondDouble:
        value = float(literal)
        if math.isfinite(value):
            return value
        self.has_others = True
        return _BeyondDouble(literal)

    def constant(self, literal: str) -> float:
        self.has_others = True
        return float(literal)

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
        return result


def _as_text(value: JSONValue, nan: str | None) -> JSONValue:
    """Return a value with texts for the numbers that JSON or a double does not have."""
    if isinstance(value, dict):
        return {name: _as_text(each, nan) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_text(each, nan) for each in value]
    if not _is_other(value):
        return value
    if isinstance(value, str):
        return str(value)
    return nan if math.isnan(value) else INFINITIES[value > 0]


def _is_other(value: object) -> TypeGuard[float | _BeyondDouble]:
    return isinstance(value, _BeyondDouble) or (
        isinstance(value, float) and not math.isfinite(value)
    )


def _has_other(value: JSONValue) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return _is_other(value) or any(map(_has_other, inner))


def _unfit(name: str, value: JSONValue) -> RowError:
    """Return the error of a column with numbers that JSON or a double does not have."""
    for key, each in ((name, value), *(value.items() if isinstance(value, dict) else ())):
        if key in sampling_keys() and _is_other(each):
            return RowError("invalid_param", f"{key} must be a finite number", param=key)
    shown = shown_key(name)
    return RowError(
        "invalid_json_line",
        f"{shown} has NaN, Infinity or a number beyond a double, which are not allowed there",
        param=shown,
    )


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
