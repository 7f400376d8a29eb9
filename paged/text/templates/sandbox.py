"""Sandboxed Jinja environment of chat templates and prompt templates.

A chat template is part of a downloaded model folder, so it is untrusted input. Jinja's own sandbox
keeps a template from Python's internals, but lets it loop for days and fill the memory. Here a
template can do only what is listed: statements and expressions (`_NODES`), methods of texts, lists
and objects (`sandbox_methods`), filters and tests (`sandbox_filters`), and a few functions. Each of
these takes its work and memory from a `Budget` before it computes: the cost of statements and
expressions is inserted into the compiled template, that of values depends on their sizes. So a
rendering ends, and every operation in it, at the same point on every machine.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, UndefinedError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.lexer import Token
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, missing
from jinja2.visitor import NodeTransformer

from pagedrun.paged.text.templates.sandbox_budget import (
    MAX_BITS,
    MAX_MEMORY,
    MAX_WORK,
    Budget,
    require_key,
)
from pagedrun.paged.text.templates.sandbox_filters import filters_of, tests_of
from pagedrun.paged.text.templates.sandbox_methods import METHODS, PROPERTIES, Method, computed

MAX_TOKENS = 30_000  # of a template; compiling takes seconds and a hundred MiB for as many
MAX_RANGE = 1_000_000
MAX_TIME_FORMAT = 256
MAX_NAME = 100  # characters of a missing name, for its message
_OBJECT_NAMES = frozenset(dir(dict))


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja environment of one template, with bounded rendering.

    Beyond `max_work` units of work or `max_memory` bytes it raises `OverflowError`, for forbidden
    access `SecurityError`, and any error of the template's own expressions. `options` are Jinja's.
    For one thread.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(
        self,
        undefined: type[Undefined] = Undefined,
        max_work: int = MAX_WORK,
        max_memory: int = MAX_MEMORY,
        **options: Any,
    ) -> None:
        # Constants are not folded at compile time, where the budget does not count.
        super().__init__(
            undefined=undefined, finalize=self.shown, optimized=False, cache_size=0, **options
        )
        self.code_generator_class = _CodeGenerator
        self.add_extension(_TokenLimit)
        self.budget = Budget(max_work, max_memory)
        self.filters = {**filters_of(self.budget), "attr": self._attr}
        self.tests = tests_of(self.budget)
        self._clock: datetime | None = None
        functions: dict[str, Any] = {
            "range": self._range,
            "dict": self._dict,
            "namespace": self._namespace,
            "cycler": self._cycler,
            "joiner": self._joiner,
        }
        self._set_functions(functions)

    @classmethod
    def for_chats(cls, **limits: Any) -> "Sandbox":
        """Return a sandbox with the functions transformers gives chat templates."""
        extensions = [LoopControls, _GenerationTag]
        sandbox = cls(trim_blocks=True, lstrip_blocks=True, extensions=extensions, **limits)
        chats = {"raise_exception": sandbox._raise, "strftime_now": sandbox._strftime}
        sandbox._set_functions({**sandbox.globals, **chats})
        return sandbox

    def render(
        self, template: Template, variables: Mapping[str, object], time: datetime | None = None
    ) -> str:
        """Return the text of `template`, compiled by this sandbox, with `variables`.

        `time` is the clock of `strftime_now`, None for the present.
        """
        self.budget.begin()
        self._clock = time
        return template.render(variables)

    # Called by the compiled template

    def step(self, work: int, memory: int) -> bool:
        """Take the cost of the statements that follow; true, as part of a condition."""
        budget = self.budget
        budget.work -= work
        budget.memory -= memory
        if budget.work < 0 or budget.memory < 0:
            budget.spend(0)
            budget.keep(0)
        return True

    def shown(self, value: Any) -> Any:
        """Take the cost of a printed value; Jinja converts it to text."""
        if isinstance(value, str):
            self.budget.read(len(value))
            self.budget.keep(16 + 4 * len(value))  # with those of other texts that are wide
        else:
            self.budget.keep(4 * self.budget.weigh(value).size)
        return value

    def joined(self, *values: Any) -> str:
        """Return the joined texts of `values`, the operator `~`."""
        text = "".join([str(self.shown(value)) for value in values])
        self.budget.kept(text)
        return text

    def compared(self, value: Any) -> Any:
        """Take the cost of a comparison with a value."""
        return self.budget.compared(value)

    def searched(self, value: Any) -> Any:
        """Take the cost of a search in a value."""
        return self.budget.searched(value)

    def key(self, value: Any) -> Any:
        """Return the key of a new object."""
        return require_key(value)

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Return `value[start:stop:step]`."""
        part = slice(start, stop, step)
        if isinstance(value, str | list | tuple):
            count = len(range(*part.indices(len(value))))
            self.budget.spend(count >> 3)
            self.budget.need(8 * count if not isinstance(value, str) else 4 * count)
            return self.budget.kept(value[part])
        if isinstance(value, range | Undefined):
            return value[part]  # an undefined one raises its error
        raise TypeError(f"a {type(value).__name__} has no slices")

    def expanded(self, values: Any) -> list[Any]:
        """Return the items of `*values` in a call."""
        return self.budget.listed(values)

    def expanded_names(self, values: Any) -> dict[str, Any]:
        """Return the items of `**values` in a call."""
        if not isinstance(values, dict):
            raise TypeError(f"** takes an object, not {type(values).__name__}")
        if any(not isinstance(name, str) or len(name) > MAX_NAME for name in values):
            raise TypeError(f"** takes names of at most {MAX_NAME} characters")
        self.budget.keep(128 * len(values))
        return values

    def refuse(self, what: str) -> NoReturn:
        """Refuse a statement or expression that is not listed."""
        raise SecurityError(f"a template cannot have {what}")

    # Overrides

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`: a field, a method that is listed, or else an undefined value."""
        if type(obj) is dict and attribute not in _OBJECT_NAMES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        found = self._member(obj, attribute)
        if found is not missing:
            return found
        try:
            return obj[attribute]
        except (TypeError, LookupError):
            return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`: an item, or else an attribute as above."""
        require_key(argument)
        try:
            return obj[argument]
        except (TypeError, LookupError):
            found = self._member(obj, argument) if isinstance(argument, str) else missing
            if found is not missing:
                return found
        name = argument[:MAX_NAME] if isinstance(argument, str) else argument
        return self.undefined(obj=obj, name=name)

    def _member(self, obj: Any, name: str) -> Any:
        """Return a method or a property, an unsafe undefined value for those not listed."""
        if isinstance(obj, Namespace):
            return getattr(obj, name, missing) if name[:1] != "_" else self._unsafe(obj, name)
        if isinstance(obj, Undefined):
            return missing
        kind = next((each for each in type(obj).__mro__ if each in METHODS), None)
        if kind is not None:
            guard = METHODS[kind].get(name)
            if guard is not None:
                return Method(self, obj, name, guard)
            if name in PROPERTIES.get(kind, ()):
                return getattr(obj, name)
        if name in getattr(type(obj), "_fields", ()):  # of a group, which is a named tuple
            return getattr(obj, name)
        return self._unsafe(obj, name) if hasattr(type(obj), name) else missing

    def _attr(self, obj: Any, name: str) -> Any:
        """Return `obj.name` if that is no item, the filter `attr`."""
        found = self._member(obj, name)
        if found is not missing and not isinstance(obj, Undefined):
            return found
        return self.undefined(obj=obj, name=name[:MAX_NAME])

    def _unsafe(self, obj: Any, name: str) -> Undefined:
        return self.unsafe_undefined(obj, name[:MAX_NAME])

    def call(  # Jinja's names: a called function may have arguments of any name
        __self,
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a macro, a method or a function for the template."""
        kind = type(__obj)
        if kind is Method or (callable(__obj) and __self._is_function(__obj)):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(*args, **kwargs)
        if kind in (Macro, LoopContext, Joiner) or isinstance(__obj, Undefined):
            return __context.call(__obj, *args, **kwargs)
        if callable(__obj):
            raise SecurityError(f"a template cannot call a {kind.__name__}")
        raise TypeError(f"a {kind.__name__} cannot be called")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator, if its result is not too large."""
        return computed(self.budget, operator, left, right)

    def _is_function(self, value: Any) -> bool:
        return type(value) is type(self._range) and value in self._functions

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Meter().visit(source), *args, **kwargs)

    # Functions of templates

    def _set_functions(self, functions: dict[str, Any]) -> None:
        self.globals = functions
        self._functions = frozenset(functions.values())

    def _range(self, *args: int) -> range:
        items = range(*args)
        if items[MAX_RANGE : MAX_RANGE + 1]:  # len() itself overflows beyond the machine's word
            raise OverflowError(f"range() makes more than {MAX_RANGE:,} items")
        return items

    def _dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        if len(args) > 1:
            raise TypeError(f"dict takes at most one argument, not {len(args)}")
        made: dict[Any, Any] = {}
        for given in args:
            pairs = given.items() if isinstance(given, dict) else given
            for key, value in self.budget.counted(pairs):
                made[require_key(key)] = value
        self.budget.keep(128 * len(kwargs))
        return made | kwargs

    def _namespace(self, *args: Any, **kwargs: Any) -> "_Namespace":
        self.budget.keep(512)
        return _Namespace(self._dict(*args, **kwargs))

    def _cycler(self, *items: Any) -> Cycler:
        self.budget.keep(512)
        return Cycler(*items)

    def _joiner(self, separator: str = ", ") -> Joiner:
        self.budget.keep(512)
        return Joiner(separator)

    def _raise(self, message: Any) -> NoReturn:
        self.budget.weigh(message)
        raise TemplateError(str(message))

    def _strftime(self, time_format: str) -> str:
        if len(time_format) > MAX_TIME_FORMAT:
            raise OverflowError(f"a time's format has more than {MAX_TIME_FORMAT} characters")
        time = datetime.now() if self._clock is None else self._clock
        return str(self.budget.kept(time.strftime(time_format)))


class _Namespace(Namespace):
    """Jinja's namespace; printed without its values, which may refer to it."""

    def __repr__(self) -> str:
        return "<Namespace>"


# Units of work of an expression or statement by itself, about as measured.
_WORK: dict[type, int] = {
    nodes.Node: 1,
    nodes.Name: 2,
    nodes.Getattr: 6,
    nodes.Getitem: 6,
    nodes.Compare: 6,
    nodes.Test: 8,
    nodes.BinExpr: 12,
    nodes.Concat: 16,
    nodes.Output: 10,
    nodes.Filter: 20,
    nodes.Call: 24,
    nodes.For: 30,
    nodes.Macro: 30,
    nodes.CallBlock: 60,
    nodes.AssignBlock: 10,
    nodes.FilterBlock: 20,
}
# Bytes of the object that it makes, apart from texts.
_MEMORY: dict[type, int] = {
    nodes.List: 64,
    nodes.Tuple: 64,
    nodes.Dict: 256,
    nodes.For: 512,
    nodes.Macro: 1024,
    nodes.CallBlock: 1024,
    nodes.Call: 128,
    nodes.Output: 32,
    nodes.AssignBlock: 128,
    nodes.FilterBlock: 128,
}
_ITEM_MEMORY = 128
_MIN_BRANCH = 100  # work of a branch that is counted only if it is taken
# Everything that a template may consist of.
_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.With),
    *(nodes.Assign, nodes.AssignBlock, nodes.NSRef, nodes.Scope, nodes.Macro, nodes.CallBlock),
    *(nodes.FilterBlock, nodes.Break, nodes.Continue, nodes.Name, nodes.Const, nodes.List),
    *(nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Call),
    *(nodes.Filter, nodes.Test, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat),
    *(nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr),
)
_REFUSED: dict[type, str] = {
    nodes.Block: "{% block %}",
    nodes.Extends: "{% extends %}",
    nodes.Include: "{% include %}",
    nodes.Import: "{% import %}",
    nodes.FromImport: "{% from %}",
    nodes.ScopedEvalContextModifier: "{% autoescape %}",
}


class _Meter(NodeTransformer):
    """Inserts counting into a template's syntax tree, with refusals of unlisted nodes."""

    def __init__(self) -> None:
        self._steps: dict[int, nodes.Node] = {}  # by identity: equality compares their trees

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Visit a node that is listed, and replace another by its refusal."""
        if isinstance(node, _NODES):
            return super().visit(node, *args, **kwargs)
        name = _REFUSED.get(type(node), type(node).__name__)
        refusal = _call("refuse", [nodes.Const(name)], node)
        return nodes.ExprStmt(refusal).set_lineno(node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        self._count(node.body, node)
        if node.test is not None:
            step = self._step([node.test], node)
            node.test = nodes.And(step, node.test).set_lineno(node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        self._count(node.body, node)
        return node

    visit_CallBlock = visit_Macro

    def visit_If(self, node: nodes.If) -> nodes.Node:
        self.generic_visit(node)
        for branch in (node.body, node.else_):
            if self._cost(branch)[0] > _MIN_BRANCH:
                self._count(branch, node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._weighed(node.expr)
        for operand in node.ops:
            is_search = operand.op in ("in", "notin")
            operand.expr = (
                _call("searched", [operand.expr], node)
                if is_search
                else self._weighed(operand.expr)
            )
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        args = [nodes.Const(None) if end is None else end for end in ends]
        return _call("sliced", [node.node, *args], node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = _call("key", [pair.key], node)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            return _call("refuse", [nodes.Const(f"a number of more than {MAX_BITS} bits")], node)
        return node

    def visit_Call(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _call("expanded", [node.dyn_args], node)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _call("expanded_names", [node.dyn_kwargs], node)
        return node  # type: ignore[no-any-return]

    visit_Filter = visit_Test = visit_Call

    def _weighed(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else _call("compared", [node], node)

    def _count(self, body: list[nodes.Node], at: nodes.Node) -> None:
        """Begin statements with a step that takes their cost."""
        statement = nodes.ExprStmt(self._step(body, at)).set_lineno(at.lineno)
        self._steps[id(statement)] = statement
        body.insert(0, statement)

    def _step(self, counted: Iterable[nodes.Node], at: nodes.Node) -> nodes.Call:
        work, memory = self._cost(counted)
        return _call("step", [nodes.Const(work + 10), nodes.Const(memory)], at)

    def _cost(self, counted: Iterable[nodes.Node]) -> tuple[int, int]:
        """Return the work and the memory of nodes, without those that have their own step."""
        work = memory = 0
        stack = list(counted)
        while stack:
            node = stack.pop()
            kind = next((each for each in type(node).__mro__ if each in _WORK), nodes.Node)
            work += _WORK[kind]
            memory += _MEMORY.get(type(node), 0)
            if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict):
                memory += _ITEM_MEMORY * len(node.items)
            elif isinstance(node, nodes.TemplateData):
                work += len(node.data) >> 5
                memory += 16 + 4 * len(node.data)
            for _, value in node.iter_fields():
                if isinstance(value, nodes.Node):
                    stack.append(value)
                elif isinstance(value, list) and not self._has_step(value):
                    stack.extend(each for each in value if isinstance(each, nodes.Node))
        return work, memory

    def _has_step(self, body: list[Any]) -> bool:
        return bool(body) and id(body[0]) in self._steps


class _CodeGenerator(CodeGenerator):
    """Jinja's compiler, with plain calls of the counting methods, and without folding."""

    def visit_Call(self, node: nodes.Call, frame: Any, forward_caller: bool = False) -> None:
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for arg in node.args:
            self.visit(arg, frame)
            self.write(", ")
        self.write(")")

    def _output_child_to_const(self, node: nodes.Expr, frame: Any, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _TokenLimit(Extension):
    """Bounds the length of a template, and with it the time and memory of compiling it."""

    def filter_stream(self, stream: Any) -> Iterator[Token]:
        for number, token in enumerate(stream):
            if number == MAX_TOKENS:
                reason = f"the template has more than {MAX_TOKENS:,} tokens"
                raise TemplateSyntaxError(reason, token.lineno)
            yield token


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
