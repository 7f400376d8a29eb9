"""Filters and tests that templates may use, each with a bound of its cost.

Those that are not in the tables are unknown to a template. A guard takes the work of a call from
the budget before the library's own function computes; where that reads an iterable, it gets one
that counts its items.
"""

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Undefined
from jinja2.tests import TESTS as JINJA_TESTS

from pagedrun.paged.text.templates.sandbox_budget import Budget, require_key, size_of
from pagedrun.paged.text.templates.sandbox_methods import (
    HTML_FACTOR,
    LINE_ENDS,
    Guard,
    check_format,
    free,
    in_case,
    is_number,
    lines,
    pad,
    read_once,
    replace,
    strip,
)

MAX_DIGITS = 4_300  # of a text that is read as a number, as in Python
MAX_PRECISION = 100
MAX_INDENT = 64
MAX_NAME = 256  # characters of the path of an attribute


def _any_text(budget: Budget, value: Any) -> str:
    """Convert a value to text as the library does."""
    if not isinstance(value, str):
        budget.weigh(value)
        value = budget.kept(str(value))
    return value  # type: ignore[no-any-return]


def _given_text(value: Any) -> str:
    if not isinstance(value, str):
        if isinstance(value, Undefined):
            str(value + "")  # raises its error
        raise TypeError(f"the filter takes a text, not {type(value).__name__}")
    return value


def _of_text(guard: Guard) -> Guard:
    """Return the guard of a filter that is a method of its input's text."""

    def guarded(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> Any:
        text = _any_text(budget, value)
        guard(budget, text, *args, *kwargs.values())
        return text

    return guarded


def _escape(budget: Budget, value: Any) -> Any:
    text = _any_text(budget, value)
    budget.read(4 * len(text))
    budget.need(2 * size_of(text, HTML_FACTOR))
    return text


def _filter_replace(budget: Budget, value: Any, old: Any, new: Any, count: Any = None) -> Any:
    text = _any_text(budget, value)
    replace(budget, text, _any_text(budget, old), _any_text(budget, new))
    return text


def _filter_format(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> Any:
    text = _any_text(budget, value)
    check_format(budget, text, kwargs or args)
    return text


def _filter_indent(
    budget: Budget, value: Any, width: Any = 4, first: Any = False, blank: Any = False
) -> None:
    text = _given_text(value)
    lines(budget, text)
    unit = len(width) if isinstance(width, str) else max(int(width), 0)
    num_lines = sum(map(text.count, LINE_ENDS)) + 1
    budget.spend(4 * num_lines)
    budget.need(4 * unit + 4 * (2 * len(text) + num_lines * (unit + 1)) + 128 * num_lines)


def _filter_truncate(
    budget: Budget,
    value: Any,
    length: Any = 255,
    killwords: Any = False,
    end: Any = "...",
    leeway: Any = None,
) -> None:
    text = _given_text(value)
    budget.read(2 * len(text) + len(end))
    budget.need(2 * size_of(text) + 4 * len(end))


def _filter_title(budget: Budget, value: Any) -> Any:
    text = _any_text(budget, value)
    budget.spend(4 * len(text))
    budget.need(128 * len(text))
    return text


def _filter_wordcount(budget: Budget, value: Any) -> Any:
    text = _any_text(budget, value)
    budget.spend(len(text))
    budget.need(64 * len(text))
    return text


def _filter_wordwrap(
    budget: Budget,
    value: Any,
    width: Any = 79,
    break_long_words: Any = True,
    wrapstring: Any = None,
    break_on_hyphens: Any = True,
) -> None:
    """Long words are cut from the front, again and again: the square of their length."""
    text = _given_text(value)
    num_lines = sum(map(text.count, LINE_ENDS)) + 1
    narrow = max(width, 1) if isinstance(width, int) else 1
    budget.spend(16 * len(text) + 64 * num_lines + len(text) * len(text) // (1024 * narrow))
    end = len(wrapstring) if isinstance(wrapstring, str) else 1
    budget.need(4 * (len(text) * (1 + end)) + 192 * len(text))


def _filter_striptags(budget: Budget, value: Any) -> Any:
    text = _any_text(budget, value)
    num_tags = text.count("<")
    # Before its release 3 the library copied the rest of the text at each tag.
    budget.spend(len(text) + num_tags * (len(text) >> 12))
    budget.need(192 * len(text))
    return text


def _filter_urlencode(budget: Budget, value: Any) -> Any:
    if isinstance(value, int | float):
        value = str(value)
    text = _given_text(value)
    budget.spend(4 * len(text))
    budget.need(64 * len(text))
    return text


def _filter_number(budget: Budget, value: Any, *_: Any, **__: Any) -> None:
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        raise OverflowError(f"a number has more than {MAX_DIGITS:,} digits")


def _filter_round(budget: Budget, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if not isinstance(precision, int) or abs(precision) > MAX_PRECISION:
        raise OverflowError(f"round takes a precision of at most {MAX_PRECISION}")


def _items_of(budget: Budget, values: Any, *args: Any, **_: Any) -> Any:
    """Count the items as they are read."""
    return budget.counted(values)


def _called_of(budget: Budget, values: Any, *args: Any, **kwargs: Any) -> Any:
    """As above, for a filter, test or attribute by its name."""
    num_steps = sum(map(_num_steps, (*args[:1], kwargs.get("attribute"))))
    return budget.counted(values, 30 + 5 * num_steps)


def _num_steps(name: Any) -> int:
    """Return the number of steps in the path of an attribute, such as 2 in `a.b`."""
    if not isinstance(name, int | str | None) or (isinstance(name, str) and len(name) > MAX_NAME):
        raise SecurityError(f"an attribute is a name of at most {MAX_NAME} characters")
    return name.count(".") + 1 if isinstance(name, str) else 1


def _sorted(budget: Budget, values: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the comparisons of sorting the items."""
    num_steps = sum(map(_num_steps, (*args, kwargs.get("attribute"))))
    if isinstance(values, Undefined):
        return values
    items = values if isinstance(values, dict) else budget.listed(values)
    weight = budget.weigh(items)
    num_rounds = len(items).bit_length() + 1
    budget.spend(num_rounds * (8 * len(items) + weight.items) + 5 * num_steps * len(items))
    budget.read(num_rounds * weight.size)
    budget.need(256 * len(items) + weight.size)
    return items


def _filter_join(budget: Budget, values: Any, d: Any = "", attribute: Any = None) -> Any:
    _num_steps(attribute)
    separator = _any_text(budget, d)
    items = budget.listed(values)
    is_ascii, num_chars = separator.isascii(), len(separator) * len(items)
    for item in items:
        if isinstance(item, str):
            is_ascii = is_ascii and item.isascii()
            num_chars += len(item)
        else:
            num_chars += budget.weigh(item).size
    budget.read(num_chars)
    budget.need(num_chars if is_ascii else 4 * num_chars)
    return items


def _filter_sum(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not is_number(start):
        raise SecurityError("sum adds numbers")
    return budget.counted(values, 4 + 5 * _num_steps(attribute))


def _filter_batch(budget: Budget, values: Any, linecount: int, fill_with: Any = None) -> Any:
    items = budget.listed(values)
    budget.keep(64 * len(items) + 8 * max(linecount, 0))
    return items


def _filter_slice(budget: Budget, values: Any, slices: int, fill_with: Any = None) -> Any:
    items = budget.listed(values)
    budget.spend(8 * max(slices, 0))
    budget.keep(16 * len(items) + 128 * max(slices, 0))
    return items


def _filter_reverse(budget: Budget, value: Any) -> Any:
    if isinstance(value, str):
        read_once(budget, value)
    elif not isinstance(value, list | tuple | dict | range | Undefined):
        value = budget.listed(value)
    return value


def to_json(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON as Transformers has it, where Jinja's own filter escapes it for HTML."""
    if len(str(indent)) > MAX_INDENT or (isinstance(indent, int) and indent > MAX_INDENT):
        raise OverflowError(f"tojson takes an indent of at most {MAX_INDENT}")
    if any(len(str(each)) > MAX_INDENT for each in separators or ()):
        raise OverflowError(f"tojson takes separators of at most {MAX_INDENT} characters")
    weight = budget.weigh(value)
    before = 0 if indent is None else 4 * MAX_INDENT * weight.depth
    budget.spend(weight.items * (weight.items.bit_length() + 8))
    budget.need(2 * weight.size + weight.items * (before if indent else 8 * bool(separators)))
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    return str(budget.kept(text))


# Filters without a guard take a time and memory that do not depend on their input.
_FILTER_GUARDS: dict[str, Guard] = {
    **dict.fromkeys(("abs", "count", "d", "default", "first", "items", "last", "length"), free),
    **dict.fromkeys(("capitalize", "lower", "upper"), _of_text(in_case)),
    **dict.fromkeys(("e", "escape", "forceescape", "safe"), _escape),
    **dict.fromkeys(("filesizeformat", "float", "int"), _filter_number),
    **dict.fromkeys(("map", "reject", "rejectattr", "select", "selectattr"), _called_of),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), _sorted),
    "batch": _filter_batch,
    "center": _of_text(lambda budget, text, width=80: pad(budget, text, width)),
    "format": _filter_format,
    "indent": _filter_indent,
    "join": _filter_join,
    "list": _items_of,
    "replace": _filter_replace,
    "reverse": _filter_reverse,
    "round": _filter_round,
    "slice": _filter_slice,
    "string": _any_text,
    "striptags": _filter_striptags,
    "sum": _filter_sum,
    "title": _filter_title,
    "trim": _of_text(strip),
    "truncate": _filter_truncate,
    "urlencode": _filter_urlencode,
    "wordcount": _filter_wordcount,
    "wordwrap": _filter_wordwrap,
}
# These return one of their input's values, or an iterator, and nothing new.
_PASSING = frozenset(
    {
        *("d", "default", "first", "items", "last", "map", "max", "min"),
        *("reject", "rejectattr", "select", "selectattr", "unique"),
    }
)


# Tests


def _compared_both(budget: Budget, left: Any, right: Any) -> None:
    budget.compared(left)
    budget.compared(right)


def _test_in(budget: Budget, value: Any, values: Any) -> None:
    budget.compared(value)
    if not isinstance(values, list | tuple | dict | str | range | Undefined):
        raise TypeError(f"{type(values).__name__} cannot be searched")
    budget.searched(values)


def _test_number(budget: Budget, *values: Any) -> None:
    for value in values:
        if isinstance(value, str):  # `%` would format it
            raise TypeError("the test takes a number, not a text")


def _test_text(budget: Budget, value: Any) -> str:
    text = _any_text(budget, value)
    budget.read(len(text))
    return text


_TEST_GUARDS: dict[str, Guard] = {
    **dict.fromkeys(("boolean", "callable", "defined", "escaped", "false", "float"), free),
    **dict.fromkeys(("integer", "iterable", "mapping", "none", "number", "sameas"), free),
    **dict.fromkeys(("sequence", "string", "true", "undefined"), free),
    **dict.fromkeys(("!=", "<", "<=", "==", ">", ">=", "eq", "equalto"), _compared_both),
    **dict.fromkeys(("ge", "greaterthan", "gt", "le", "lessthan", "lt", "ne"), _compared_both),
    **dict.fromkeys(("divisibleby", "even", "odd"), _test_number),
    **dict.fromkeys(("filter", "test"), lambda _, name: require_key(name)),
    **dict.fromkeys(("lower", "upper"), _test_text),
    "in": _test_in,
}


def filters_of(budget: Budget) -> dict[str, Any]:
    """Return the filters of a sandbox with this budget."""
    filters = {
        name: _guarded(budget, JINJA_FILTERS[name], guard, is_new=name not in _PASSING)
        for name, guard in _FILTER_GUARDS.items()
    }
    return filters | {"tojson": lambda *args, **kwargs: to_json(budget, *args, **kwargs)}


def tests_of(budget: Budget) -> dict[str, Any]:
    """Return the tests of a sandbox with this budget."""
    tests: dict[str, Any] = {**JINJA_TESTS}
    return {
        name: _guarded(budget, tests[name], guard, is_new=False)
        for name, guard in _TEST_GUARDS.items()
    }


def _guarded(
    budget: Budget, function: Callable[..., Any], guard: Guard, *, is_new: bool
) -> Callable[..., Any]:
    if guard is free:
        return function
    if hasattr(function, "jinja_pass_arg"):

        @wraps(function)  # with the library's marker of the argument
        def passing(passed: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            first = guard(budget, value, *args, **kwargs)
            found = function(passed, value if first is None else first, *args, **kwargs)
            return budget.kept(found) if is_new else found

        return passing

    def guarded(value: Any, *args: Any, **kwargs: Any) -> Any:
        first = guard(budget, value, *args, **kwargs)
        found = function(value if first is None else first, *args, **kwargs)
        return budget.kept(found) if is_new else found

    return guarded
