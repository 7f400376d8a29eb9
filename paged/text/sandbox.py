"""Sandbox: where templates run, with a bound on what they reach and on how much they do.

Jinja's sandbox keeps a template from Python's internals, but lets it loop for days and make
strings that fill the machine. A chat template comes with a model folder, which is a stranger's.
"""

import json
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from pagedrun.paged.text.template_sizes import (
    GUARDED_FILTERS,
    MAX_MADE_CHARS,
    printed_size,
    size_of_call,
    size_of_product,
)

# A step is a turn of a loop, a call or a filter. Steps and sizes are counted, not timed, so that a
# template fails on every machine or on none; the clock is for what counting does not see.
MAX_STEPS = 1_000_000
MAX_RENDER_SECONDS = 10.0
# `random` would give another prompt each time; the others make much of little, and no prompt
# needs them.
REMOVED_FILTERS = ("random", "urlize", "xmlattr")


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for one template, whose every rendering ends.

    Over the limits above, or `max_steps`, it raises `OverflowError`, for what is not allowed
    `SecurityError`, and whatever the template's own expressions raise. `options` are Jinja's. For
    one thread.
    """

    # `~` is no operator that Jinja lets be intercepted; `_Meter` sees to it.
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self, undefined: type[Undefined] = Undefined, max_steps: int = MAX_STEPS, **options: Any
    ) -> None:
        # Nothing is computed while compiling but what the budget below counts too.
        super().__init__(
            undefined=undefined, finalize=self._shown, optimized=False, cache_size=0, **options
        )
        self._max_steps = max_steps
        self._begin()
        del self.globals["lipsum"]
        self.globals["range"] = self._range
        self.globals["dict"] = _new_dict  # the type itself has methods that reach further
        for name in REMOVED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters["join"] = self._join
        for name, function in self.filters.items():
            self.filters[name] = self._counted(function, GUARDED_FILTERS.get(name))

    @classmethod
    def for_chats(cls) -> "Sandbox":
        """Return one with what transformers gives chat templates, but for `strftime_now`.

        That is a variable, since it is of one rendering.
        """
        sandbox = cls(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControls, _GenerationTag]
        )
        sandbox.globals["raise_exception"] = _raise
        return sandbox

    def render(self, template: Template, variables: Mapping[str, object]) -> str:
        """Return what `template`, which this sandbox compiled, makes of `variables`."""
        self._begin()
        return template.render(variables)

    def step(self, num_chars: int = 0) -> None:
        """Count a turn of a loop or a call, and text that it puts out unchanged."""
        self._num_steps += 1
        if self._num_steps > self._max_steps:
            raise OverflowError(f"the template takes more than {self._max_steps:,} steps")
        if time.monotonic() > self._deadline:
            raise OverflowError(f"the template takes more than {MAX_RENDER_SECONDS:g} seconds")
        self._make(num_chars)

    def checked(self, value: Any) -> Any:
        """Return `value`, a list or text just made, once it is paid for."""
        if isinstance(value, str):
            self._make(len(value))
        elif isinstance(value, list | tuple | dict | set):
            self._make(8 * len(value))
            if printed_size(value) > MAX_MADE_CHARS:
                raise OverflowError(f"a value is larger than {MAX_MADE_CHARS:,} characters")
        return value

    def concat_values(self, *values: Any) -> str:
        """Return the texts of `values` in one: what `~` does."""
        self.step()
        return "".join([str(self._shown(value)) for value in values])

    def call(  # the names are Jinja's: what a template calls may have any argument
        __self,
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call something for the template."""
        if getattr(__obj, "__self__", None) is __self:  # put in by `_Meter`
            return __obj(*args)
        __self.step()
        args, num_chars = size_of_call(__obj, args, kwargs)
        __self._make(num_chars, is_forecast=True)
        return __self.checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what an operator makes, if it is not too much."""
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
        """Pay for the text of a value that is put out; Jinja turns it into text."""
        self._make(len(value) if isinstance(value, str) else printed_size(value))
        return value

    def _join(self, values: Any, separator: Any = "", attribute: Any = None) -> str:
        """Jinja's filter, which counts while it reads: its values are often a generator's."""
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
        """Return the filter `function` as a step, refused beforehand where it would make much."""
        num_passed = int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)  # with what tells Jinja to pass its context
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step()
            if size_of is not None:
                self._make(size_of(*args[num_passed:], **kwargs), is_forecast=True)
            return self.checked(function(*args, **kwargs))

        return counted


class _Meter(NodeTransformer):
    """Puts the counting into a template's syntax tree."""

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
        """Begin the body with a step that pays for the plain text in it."""
        num_chars = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        step = nodes.ExprStmt(_call("step", [nodes.Const(num_chars)], node))
        node.body.insert(0, step.set_lineno(node.lineno))
        return node  # type: ignore[no-any-return]


class _GenerationTag(Extension):
    """`{% generation %}`, by which templates mark what a model is trained on: shown as it is."""

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
    """JSON as it is written, where Jinja's own escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
