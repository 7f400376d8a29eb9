"""How much a template's expressions would make, told before they are computed.

A few functions of strings and lists make much of little: `"x".center(10**9)`. None of them looks
up again while it works, so that they must be stopped beforehand.
"""

import re
from collections.abc import Callable
from typing import Any

from jinja2.exceptions import SecurityError

MAX_MADE_CHARS = 2**26  # of all strings and lists that one rendering makes on its way
MAX_POWER_BITS = 2**16
MAX_WIDTH = 9_999  # of a formatted field
MAX_PRECISION = 100
MAX_INDENT = 64
_CONTAINER_CHARS = 256  # also for what it takes in memory, so that no tangle is walked for long
_ITEM_CHARS = 8
_LEAF_CHARS = 24
_WIDE = re.compile(r"(?:\{[^{}]*|%[^a-zA-Z%]*)\d{5}")
_BORROWED_WIDTH = re.compile(r"\{[^{}]*\{|%[^a-zA-Z%]*\*")


def printed_size(value: Any) -> int:
    """Return about how many characters `value` has as text, shared parts counted each time.

    Stops looking where `MAX_MADE_CHARS` is exceeded, however deep and tangled the value is.
    """
    total = 0
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, dict | list | tuple | set | frozenset):
            total += _CONTAINER_CHARS + _ITEM_CHARS * len(each)
            if total <= MAX_MADE_CHARS:
                stack.extend(each)
                stack.extend(each.values() if isinstance(each, dict) else ())
        elif isinstance(each, int):
            total += _LEAF_CHARS + each.bit_length() // 3
        else:
            total += _LEAF_CHARS
        if total > MAX_MADE_CHARS:
            return total
    return total


def size_of_product(operator: str, left: Any, right: Any) -> int:
    """Return how many characters `left operator right` would have, or take as a list.

    Raises `OverflowError` for numbers of too many digits.
    """
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > MAX_POWER_BITS:
            raise OverflowError("the power is too large")
    elif operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MAX_POWER_BITS:
                raise OverflowError("the product is too large")
            return 0
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(times, int):
                return _length(sized) * max(times, 0)
    elif operator == "+":
        return _length(left) + _length(right)
    elif operator == "%" and isinstance(left, str):
        return _format(left, *(right if isinstance(right, tuple) else (right,)))
    return 0


def _length(value: Any) -> int:
    """Return what the value takes itself, without what is in it."""
    if isinstance(value, list | tuple):
        return _ITEM_CHARS * len(value)
    return len(value) if isinstance(value, str) else 0


def size_of_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], int]:
    """Return the arguments, and how many characters a string's method would make of them.

    The arguments come back because an iterator among them may have been read.
    """
    method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
    text = getattr(method, "__self__", None)
    if not isinstance(text, str):
        return args, 0
    name = method.__name__
    given = (*args, *kwargs.values())
    if name == "join" and args:
        args = (list(args[0]), *args[1:])
        given = args
    size_of = _METHODS.get(name)
    return args, 0 if size_of is None else size_of(text, *given)


def _text(value: Any) -> str:
    """Return what a filter takes `value` for; text is made of it only if that is small enough."""
    if not isinstance(value, str) and printed_size(value) > MAX_MADE_CHARS:
        raise OverflowError(f"a value is larger than {MAX_MADE_CHARS:,} characters")
    return str(value)


def _width(text: str, width: Any = 0, *_: Any) -> int:
    return max(len(text), width) if isinstance(width, int) else 0


def _tabs(text: str, width: Any = 8, *_: Any) -> int:
    return len(text) + text.count("\t") * max(width, 0) if isinstance(width, int) else 0


def _join(separator: str, parts: Any = (), *_: Any) -> int:
    num_chars = sum(len(part) for part in parts if isinstance(part, str))
    return num_chars + len(separator) * len(parts)


def _replace(value: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    text = _text(value)
    return len(text) + text.count(_text(old)) * len(_text(new))


def _translate(text: str, table: Any = None, *_: Any) -> int:
    values = table.values() if isinstance(table, dict) else ()
    return len(text) * max((len(value) for value in values if isinstance(value, str)), default=1)


def _format(template: Any, *args: Any, **kwargs: Any) -> int:
    text, values = _text(template), [*args, *kwargs.values()]
    wide = any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values)
    if _WIDE.search(text) or (wide and _BORROWED_WIDTH.search(text)):
        raise OverflowError(f"a field is wider than {MAX_WIDTH:,} characters")
    longest = max(map(printed_size, values), default=0)
    return len(text) + (text.count("{") + text.count("%")) * (longest + MAX_WIDTH)


_METHODS: dict[str, Callable[..., int]] = {
    "center": _width,
    "ljust": _width,
    "rjust": _width,
    "zfill": _width,
    "expandtabs": _tabs,
    "join": _join,
    "replace": _replace,
    "translate": _translate,
    "format": _format,
    "format_map": _format,
}


def _indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    each = len(width) if isinstance(width, str) else max(int(width), 0)
    return (_text(text).count("\n") + 1) * each + len(_text(text))


def _json(value: Any, *_: Any, indent: Any = None, separators: Any = (), **__: Any) -> int:
    if _ or len(str(indent)) > MAX_INDENT or (isinstance(indent, int) and indent > MAX_INDENT):
        raise OverflowError(f"tojson takes named arguments, and an indent of at most {MAX_INDENT}")
    if any(len(str(each)) > MAX_INDENT for each in separators or ()):
        raise OverflowError(f"tojson takes separators of at most {MAX_INDENT} characters")
    return printed_size(value)


def _round(value: Any, precision: Any = 0, *_: Any, **__: Any) -> int:
    if isinstance(precision, int) and abs(precision) > MAX_PRECISION:
        raise OverflowError(f"round takes a precision of at most {MAX_PRECISION}")
    return 0


def _sum(values: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise SecurityError("sum adds numbers")
    return 0


def _pieces(values: Any, count: Any, *_: Any, **__: Any) -> int:
    return max(count, 0) if isinstance(count, int) else 0


def _wrapped(text: Any, width: Any = 79, *rest: Any, **named: Any) -> int:
    ends = [each for each in (*rest, *named.values()) if isinstance(each, str)]
    return len(_text(text)) * (2 + max(map(len, ends), default=0))


# What the filters of these names would make of their arguments, at most.
GUARDED_FILTERS: dict[str, Callable[..., int]] = {
    "batch": _pieces,
    "center": lambda text, width=80: _width(_text(text), width),
    "format": _format,
    "indent": _indent,
    "replace": _replace,
    "round": _round,
    "slice": _pieces,
    "string": printed_size,
    "sum": _sum,
    "tojson": _json,
    "wordwrap": _wrapped,
}
