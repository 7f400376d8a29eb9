"""Sandboxed Jinja environment of chat templates and prompt templates.

Jinja's own sandbox keeps a template from Python's internals, but lets it loop for days and build
strings that fill the memory. A chat template is part of a downloaded model folder, so it is
untrusted input. Steps and sizes are counted here and not timed: a template fails on every machine
or on none. A few functions of strings and lists make large values of small ones, such as
`"x".center(10**9)`, without returning to the interpreter; their sizes are estimated before the
call.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, UndefinedError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from jinja2.visitor import NodeTransformer

# A step is an iteration of a loop, a call or a filter. Steps and sizes are counted, not timed, so
# that a template fails on every machine or on none; the clock is for uncounted work.
MAX_STEPS = 1_000_000
MAX_RENDER_SECONDS = 10.0
# `random` would give another prompt each time; the others make large values, and no prompt needs
# them.
REMOVED_FILTERS = ("random", "urlize", "xmlattr")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja environment of one template, with bounded rendering.

    Beyond the limits above, or `max_steps`, it raises `OverflowError`, for forbidden access
    `SecurityError`, and any error of the template's own expressions. `options` are Jinja's. For one
    thread.
    """

    # Jinja cannot intercept the operator `~`; `_Meter` replaces it.
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self, undefined: type[Undefined] = Undefined, max_steps: int = MAX_STEPS, **options: Any
    ) -> None:
        # Constants are not folded at compile time, where the budget does not count.
        super().__init__(
            undefined=undefined, finalize=self._shown, optimized=False, cache_size=0, **options
        )
        self._max_steps = max_steps
        self._begin()
        del self.globals["lipsum"]
        self.globals["range"] = self._range
        self.globals["dict"] = _new_dict  # the type's own methods give wider access
        for name in REMOVED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters["join"] = self._join
        for name, function in self.filters.items():
            self.filters[name] = self._counted(function, GUARDED_FILTERS.get(name))

    @classmethod
    def for_chats(cls) -> "Sandbox":
        """Return a sandbox with the functions transformers gives chat templates.

        `strftime_now` is not included: it is a variable of each rendering.
        """
        sandbox = cls(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControls, _GenerationTag]
        )
        sandbox.globals["raise_exception"] = _raise
        return sandbox

    def render(self, template: Template, variables: Mapping[str, object]) -> str:
        """Return the text of `template`, compiled by this sandbox, with `variables`."""
        self._begin()
        return template.render(variables)

    def step(self, num_chars: int = 0) -> None:
        """Count an iteration or a call, and the constant text that it prints."""
        self._num_steps += 1
        if self._num_steps > self._max_steps:
            raise OverflowError(f"the template takes more than {self._max_steps:,} steps")
        if time.monotonic() > self._deadline:
            raise OverflowError(f"the template takes more than {MAX_RENDER_SECONDS:g} seconds")
        self._make(num_chars)

    def checked(self, value: Any) -> Any:
        """Count the size of `value`, a new list or text, and return it."""
        if isinstance(value, str):
            self._make(len(value))
        elif isinstance(value, list | tuple | dict | set):
            self._make(8 * len(value))
            if printed_size(value) > MAX_MADE_CHARS:
                raise OverflowError(f"a value is larger than {MAX_MADE_CHARS:,} characters")
        return value

    def concat_values(self, *values: Any) -> str:
        """Return the concatenated texts of `values`, the operator `~`."""
        self.step()
        return "".join([str(self._shown(value)) for value in values])

    def call(  # Jinja's names: a called function may have arguments of any name
        __self,
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a function for the template."""
        if getattr(__obj, "__self__", None) is __self:  # inserted by `_Meter`
            return __obj(*args)
        __self.step()
        args, num_chars = size_of_call(__obj, args, kwargs)
        __self._make(num_chars, is_forecast=True)
        return __self.checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator, if its result is not too large."""
        self.step()
        self._make(size_of_product(operator, left, right), is_forecast=True)
        return self.checked(super().call_binop(context, operator, left, right))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Meter().visit(source), *args, **kwargs)

    def _begin(self) -> None:
        self._num_steps = 0
        self._num_made = 0
        self._deadline = time.monotonic() + MAX_RENDER_SECONDS

    def _make(self, num_chars: int, *, is_forecast: bool = False) -> None:
        if self._num_made + num_chars > MAX_MADE_CHARS:
            raise OverflowError(f"the template produces more than {MAX_MADE_CHARS:,} characters")
        if not is_forecast:
            self._num_made += num_chars

    def _shown(self, value: Any) -> Any:
        """Count the text of a printed value; Jinja converts it to text."""
        self._make(len(value) if isinstance(value, str) else printed_size(value))
        return value

    def _join(self, values: Any, separator: Any = "", attribute: Any = None) -> str:
        """Jinja's filter, with counting: its values are often a generator's."""
        if attribute is not None:
            values = map(make_attrgetter(self, attribute), values)
        parts = [str(self._shown(value)) for value in values]
        between = str(self._shown(separator))
        self._make(len(between) * len(parts))
        return between.join(parts)

    def _range(self, *args: int) -> range:
        items, most = range(*args), self._max_steps
        if items[most : most + 1]:  # len() itself overflows beyond the machine's word
            raise OverflowError(f"range() makes more than {most:,} items")
        return items

    def _counted(
        self, function: Callable[..., Any], size_of: Callable[..., int] | None
    ) -> Callable[..., Any]:
        """Return the filter `function` as a step, refused before it makes too large a value."""
        num_passed = int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)  # with Jinja's marker of context arguments
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step()
            if size_of is not None:
                self._make(size_of(*args[num_passed:], **kwargs), is_forecast=True)
            return self.checked(function(*args, **kwargs))

        return counted


class _Meter(NodeTransformer):
    """Inserts counting into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._with_step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._with_step(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._with_step(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concat_values", node.nodes, node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _call("checked", [node], node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _call("checked", [node], node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _call("checked", [node], node) if node.ctx == "load" else node

    def _with_step(self, node: Any) -> nodes.Node:
        """Begin the body with a step that counts its constant text."""
        num_chars = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        step = nodes.ExprStmt(_call("step", [nodes.Const(num_chars)], node))
        node.body.insert(0, step.set_lineno(node.lineno))
        return node  # type: ignore[no-any-return]


class _GenerationTag(Extension):
    """`{% generation %}`, a mark of training text in templates: its body is printed unchanged."""

    tags = {"generation"}  # noqa: RUF012 - so in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _call(method: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    """Return the call of a method of the sandbox."""
    call = nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None)
    call.set_lineno(at.lineno)
    return call


def _raise(message: str) -> None:
    raise TemplateError(message)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON, where Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


MAX_MADE_CHARS = 2**26  # of all intermediate strings and lists of one rendering
MAX_POWER_BITS = 2**16
MAX_WIDTH = 9_999  # of a formatted field
MAX_PRECISION = 100
MAX_INDENT = 64
_CONTAINER_CHARS = 256  # also for memory, so that walks over nested values are short
_ITEM_CHARS = 8
_LEAF_CHARS = 24
_WIDE = re.compile(r"(?:\{[^{}]*|%[^a-zA-Z%]*)\d{5}")
_BORROWED_WIDTH = re.compile(r"\{[^{}]*\{|%[^a-zA-Z%]*\*")


def printed_size(value: Any) -> int:
    """Return the approximate text length of `value`, shared parts counted each time.

    Stops beyond `MAX_MADE_CHARS`, so that deep and cyclic values end.
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
    """Return the characters of `left operator right`, or its size as a list.

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
    """Return the size of the value itself, without its items."""
    if isinstance(value, list | tuple):
        return _ITEM_CHARS * len(value)
    return len(value) if isinstance(value, str) else 0


def size_of_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], int]:
    """Return the arguments, and the size of a string method's result with them.

    The arguments are returned because an iterator among them may have been consumed.
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
    """Return the text of a filter's input; converted only if that is small enough."""
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


# Upper bounds of the results of these filters.
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


class MissingColumn(UndefinedError):
    """Name used by a template without a column in the row."""

    def __init__(self, name: str, message: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class NamedUndefined(StrictUndefined):
    """Jinja's placeholder of a missing name; using it raises `MissingColumn`."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: str | None = None,
        exc: Any = UndefinedError,
    ) -> None:
        if obj is missing and name is not None:
            exc = partial(MissingColumn, name)
        super().__init__(hint, obj, name, exc)
