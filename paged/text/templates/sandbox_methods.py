"""Operators, and methods of values, that templates may use, each with a bound of its cost.

A method that is not in the tables cannot be called. A guard takes the work of a call from the
budget before the method computes, by the sizes of its arguments, and requires the memory of an
upper bound of the result.
"""

import operator
import re
from collections.abc import Callable
from typing import Any

from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import SandboxedFormatter
from jinja2.utils import Cycler
from markupsafe import Markup

from pagedrun.paged.text.templates.sandbox_budget import (
    MAX_BITS,
    Budget,
    require_bits,
    require_key,
    size_of,
)

MAX_WIDTH = 9_999  # of a formatted field

Guard = Callable[..., Any]
"""Takes the cost of a call from a budget, by its arguments, or refuses it.

Arguments: the budget, the value to the left of `.` or `|`, and those of the call. Returns another
first argument for the library's function, or None for the given one.
"""

HTML_FACTOR = 5  # characters of an escaped one, such as `&amp;`
_UPPER = 3  # characters of one in another case, such as that of `ŉ`
_WIDE_FIELD = re.compile(r"\d{5}")
_WIDE = re.compile(r"%[^a-zA-Z%]*\d{5}")
_BORROWED_WIDTH = re.compile(r"%[^a-zA-Z%]*\*")
_HAS_WIDTH = re.compile(r"%[^a-zA-Z%]*[\d*]")
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


# Operators

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def computed(budget: Budget, sign: str, left: Any, right: Any) -> Any:
    """Return `left sign right` of numbers, texts or lists.

    Raises `OverflowError` if the result is too large, and `TypeError` for other operands.
    """
    if isinstance(left, str) and sign == "%":
        check_format(budget, left, right)
        return budget.kept(left % right)
    if isinstance(left, str) and isinstance(right, str) and sign == "+":
        escaped = HTML_FACTOR if isinstance(left, Markup) or isinstance(right, Markup) else 1
        num_chars = (len(left) + len(right)) * escaped
        budget.read(num_chars)
        budget.need(num_chars if left.isascii() and right.isascii() else 4 * num_chars)
        return budget.kept(left + right)
    if is_number(left) and is_number(right):
        return _number(sign, left, right)
    if sign == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
        budget.spend(len(left) + len(right))
        budget.need(8 * (len(left) + len(right)))
        return budget.kept(left + right)  # type: ignore[operator] # a list and a tuple: TypeError
    if sign == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(times, int):
                each = size_of(sized) if isinstance(sized, str) else 8 * len(sized)
                budget.need(each * max(times, 0))
                budget.read(each * max(times, 0))
                return budget.kept(sized * times)
    if isinstance(left, Undefined) or isinstance(right, Undefined):
        return _OPERATORS[sign](left, right)  # raises its own error
    raise TypeError(
        f"unsupported operands of {sign}: {type(left).__name__} and {type(right).__name__}"
    )


def _number(sign: str, left: Any, right: Any) -> Any:
    for each in (left, right):
        if isinstance(each, int):
            require_bits(each)
    is_power = sign == "**" and isinstance(left, int) and isinstance(right, int)
    if is_power and abs(left) > 1 and right > MAX_BITS:
        raise OverflowError(f"the power has more than {MAX_BITS} bits")
    result = _OPERATORS[sign](left, right)
    if isinstance(result, complex):
        raise TypeError("a power is not a real number")
    if isinstance(result, int):
        require_bits(result)
    return result


def is_number(value: Any) -> bool:
    """Return true for an integer, a truth value or a float."""
    return isinstance(value, int | float)


def check_format(budget: Budget, text: str, values: Any) -> None:
    """Take the cost of `text % values`."""
    given = values if isinstance(values, tuple) else (values,)
    is_wide = any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in given)
    if _WIDE.search(text) or (is_wide and _BORROWED_WIDTH.search(text)):
        raise OverflowError(f"a field is wider than {MAX_WIDTH:,} characters")
    longest = budget.weigh(values).size
    escaped = HTML_FACTOR if isinstance(text, Markup) else 1
    num_fields = text.count("%")
    width = MAX_WIDTH if _HAS_WIDTH.search(text) else 512  # digits of the largest floats
    budget.read(len(text) + escaped * num_fields * longest)
    budget.need(4 * len(text) + num_fields * (escaped * longest + 4 * width))


class _Formatter(SandboxedFormatter):
    """Python's `str.format` with a bound for each field."""

    def __init__(self, sandbox: Any, budget: Budget) -> None:
        super().__init__(sandbox)
        self._budget = budget

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return value
        self._budget.need(self._budget.weigh(value).size)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        self._budget.spend(50)
        if _WIDE_FIELD.search(format_spec):
            raise OverflowError(f"a field is wider than {MAX_WIDTH:,} characters")
        self._budget.weigh(value)
        text: str = super().format_field(value, format_spec)
        self._budget.keep(4 * len(text))  # here, and in the whole
        return text


def _format(sandbox: Any, budget: Budget, text: str, args: Any, kwargs: Any) -> str:
    budget.read(4 * len(text))
    budget.keep(4 * len(text))
    found = _Formatter(sandbox, budget).vformat(text, args, kwargs)
    return str(budget.kept(found))


# Methods of texts


def read_once(budget: Budget, text: str, *_: Any, **__: Any) -> None:
    """Take the cost of reading a text, and of a copy."""
    budget.read(len(text))
    budget.need(size_of(text))


def in_case(budget: Budget, text: str) -> None:
    """Take the cost of a text in another case."""
    budget.read(4 * len(text))
    budget.need(size_of(text, 1 if text.isascii() else 2 * _UPPER))


def _find(budget: Budget, text: str, needle: Any = "", *_: Any) -> None:
    needles = needle if isinstance(needle, tuple) else (needle,)
    for each in needles:
        if isinstance(each, str):
            budget.read(8 * len(text) + len(each))


def _find_last(budget: Budget, text: str, needle: Any = "", *_: Any) -> None:
    """Search from the end: Python's takes the product of both lengths at worst."""
    if isinstance(needle, str):
        budget.read(len(text) * max(len(needle), 1))


def _starts(budget: Budget, text: str, start: Any = "", *_: Any) -> None:
    for each in start if isinstance(start, tuple) else (start,):
        budget.spend(1)
        budget.read(len(each) if isinstance(each, str) else 0)


def strip(budget: Budget, text: str, chars: Any = None, *_: Any) -> None:
    """Take the cost of comparing the ends of a text with each of some characters."""
    budget.read(len(text) * (max(len(chars), 1) if isinstance(chars, str) else 1))
    budget.need(size_of(text))


def _split(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    _find(budget, text, sep or " ")
    num_parts = text.count(sep) + 1 if isinstance(sep, str) and sep else (len(text) + 1) // 2
    if isinstance(maxsplit, int) and 0 <= maxsplit < num_parts:
        num_parts = maxsplit + 1
    budget.need(size_of(text) + 128 * num_parts)


def _split_last(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    _find_last(budget, text, sep)
    _split(budget, text, sep, maxsplit)


def lines(budget: Budget, text: str, *_: Any, **__: Any) -> None:
    """Take the cost of splitting a text at the ends of its lines."""
    budget.read(16 * len(text))
    budget.need(2 * size_of(text) + 128 * (sum(map(text.count, LINE_ENDS)) + 1))


def replace(budget: Budget, text: str, old: Any = "", new: Any = "", *_: Any) -> None:
    """Take the cost of a replacement."""
    _find(budget, text, old)
    if isinstance(old, str) and isinstance(new, str):
        num_new = text.count(old) * len(new) * (HTML_FACTOR if isinstance(text, Markup) else 1)
        budget.read(num_new)
        is_ascii = text.isascii() and new.isascii()
        budget.need((len(text) + num_new) * (1 if is_ascii else 4))


def _join(budget: Budget, text: str, parts: Any = ()) -> Any:
    items = budget.listed(parts)
    texts = [each for each in items if isinstance(each, str)]
    num_chars = sum(map(len, texts)) + len(text) * len(texts)
    is_ascii = text.isascii() and all(each.isascii() for each in texts)
    budget.read(num_chars)
    escaped = HTML_FACTOR if isinstance(text, Markup) else 1
    budget.need(num_chars * escaped * (1 if is_ascii else 4))
    return items


def pad(budget: Budget, text: str, width: Any = 0, *_: Any) -> None:
    """Take the cost of a text filled up to a width."""
    num_chars = max(len(text), width) if isinstance(width, int) else 0
    budget.read(num_chars)
    budget.need(4 * num_chars * (HTML_FACTOR if isinstance(text, Markup) else 1))


def _tabs(budget: Budget, text: str, tabsize: Any = 8) -> None:
    width = max(tabsize, 0) if isinstance(tabsize, int) else 0
    num_chars = len(text) + text.count("\t") * width
    budget.read(2 * num_chars)
    budget.need(4 * num_chars)


_TEXT_GUARDS: dict[str, Guard] = {
    **dict.fromkeys(("capitalize", "casefold", "lower", "swapcase", "title", "upper"), in_case),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), pad),
    **dict.fromkeys(("count", "find", "index", "partition"), _find),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _find_last),
    **dict.fromkeys(("endswith", "startswith"), _starts),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), strip),
    **dict.fromkeys(("removeprefix", "removesuffix"), read_once),
    **dict.fromkeys(("isalnum", "isalpha", "isascii", "isdecimal", "isdigit"), read_once),
    **dict.fromkeys(("isidentifier", "islower", "isnumeric", "isprintable"), read_once),
    **dict.fromkeys(("isspace", "istitle", "isupper"), read_once),
    "expandtabs": _tabs,
    "join": _join,
    "replace": replace,
    "rsplit": _split_last,
    "split": _split,
    "splitlines": lines,
}
_MANY_TEXTS = ("partition", "rpartition", "rsplit", "split", "splitlines")


# Methods of lists and objects


def _compare_items(budget: Budget, values: Any, value: Any = None, *_: Any) -> None:
    budget.weigh(values)
    budget.compared(value)


def _get(budget: Budget, _: Any, key: Any = None, *__: Any) -> None:
    require_key(key)


def _copy(budget: Budget, values: Any) -> None:
    budget.spend(len(values))
    budget.keep(128 * len(values))


def free(budget: Budget, *_: Any, **__: Any) -> None:
    """Take nothing: the cost of the call alone, which the compiled template takes."""


def _weigh_all(budget: Budget, _: Any, *values: Any) -> None:
    for value in values:
        budget.compared(value)


METHODS: dict[type, dict[str, Guard]] = {
    dict: {"copy": _copy, "get": _get, **dict.fromkeys(("items", "keys", "values"), free)},
    str: {**_TEXT_GUARDS, "format": free},
    Markup: _TEXT_GUARDS,
    list: {"copy": _copy, "count": _compare_items, "index": _compare_items},
    tuple: {"count": _compare_items, "index": _compare_items},
    LoopContext: {"changed": _weigh_all, "cycle": free},
    Cycler: {"next": free, "reset": free},
}
PROPERTIES: dict[type, tuple[str, ...]] = {
    LoopContext: (
        *("depth", "depth0", "first", "index", "index0", "last"),
        *("length", "nextitem", "previtem", "revindex", "revindex0"),
    ),
    Cycler: ("current",),
}


class Method:
    """Method of a value in a template, with its guard."""

    __slots__ = ("_guard", "_name", "_owner", "_sandbox")

    def __init__(self, sandbox: Any, owner: Any, name: str, guard: Guard) -> None:
        self._sandbox = sandbox
        self._owner = owner
        self._name = name
        self._guard = guard

    def __repr__(self) -> str:
        return f"<method {self._name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, and take the memory of its result."""
        budget: Budget = self._sandbox.budget
        owner, name = self._owner, self._name
        if not isinstance(owner, str):
            self._guard(budget, owner, *args, **kwargs)
            return getattr(owner, name)(*args, **kwargs)
        if name == "format":
            return _format(self._sandbox, budget, owner, args, kwargs)
        first = self._guard(budget, owner, *args, **kwargs)
        if first is not None:
            args = (first, *args[1:])
        result = getattr(owner, name)(*args, **kwargs)
        return budget.kept_texts(result) if name in _MANY_TEXTS else budget.kept(result)
