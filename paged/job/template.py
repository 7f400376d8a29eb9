"""PromptTemplate: a Jinja template over a row's columns, in a sandbox, with limits on its work."""

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagedrun.paged.errors import RowError, UsageError
from pagedrun.paged.job.json_line import shown_key
from pagedrun.paged.job.missing_column import MissingColumn, NamedUndefined

MAX_OUTPUT_CHARS = 64 * 2**20
MAX_RANGE_ITEMS = 1_000_000  # of all range() calls of one rendering
MAX_REPEATED = 2**24  # characters or items that one multiplication may make
MAX_POWER_BITS = 2**16


class PromptTemplate:
    """A compiled template; `flag` names it in messages.

    A column is a variable of its name; `row["any name"]` reaches the others. A name that is not
    there is an error, not an empty string. Raises `UsageError` if the template does not compile.
    """

    def __init__(self, source: str, flag: str = "--prompt-template") -> None:
        self.source = source
        try:
            self._template = _Sandbox(undefined=NamedUndefined).from_string(source)
        except TemplateSyntaxError as error:
            raise UsageError(f"{flag}, line {error.lineno}: {error.message}") from error
        except (TemplateError, RecursionError) as error:
            raise UsageError(f"{flag} does not compile: {error}") from error

    def render(self, columns: Mapping[str, Any]) -> str:
        """Return the prompt of a row; `RowError` (`template_error`) if that fails."""
        variables = {"row": columns, "range": _RangeBudget().range, **columns}
        parts: list[str] = []
        num_chars = 0
        try:
            for part in self._template.generate(variables):
                num_chars += len(part)
                if num_chars > MAX_OUTPUT_CHARS:
                    raise OverflowError(f"the output exceeds {MAX_OUTPUT_CHARS} characters")
                parts.append(part)
            text = "".join(parts)
            text.encode("utf-8")
        except MissingColumn as error:
            name = shown_key(error.name)
            raise RowError(
                "template_error",
                f"the prompt template needs a column {name!r}, which the row does not have",
                param=name,
            ) from error
        except Exception as error:  # a template may raise whatever its expressions raise
            reason = str(error)[:200].encode("utf-8", "replace").decode("utf-8")
            raise RowError(
                "template_error",
                f"the prompt template fails: {reason or type(error).__name__}",
            ) from error
        return text


class _RangeBudget:
    """`range` for one rendering: nested loops over it end in an error, not in a hang."""

    def __init__(self) -> None:
        self._left = MAX_RANGE_ITEMS

    def range(self, *args: int) -> range:
        items = range(*args)
        # Comparing by index: len() itself overflows beyond the machine's word.
        if items[self._left : self._left + 1]:
            raise OverflowError(f"range() makes more than {MAX_RANGE_ITEMS} items in one row")
        self._left -= len(items)
        return items


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which bounds what is reached but not how much is made."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > MAX_POWER_BITS:
                raise OverflowError("the power is too large")
        elif operator == "*":
            for sized, times in ((left, right), (right, left)):
                if (
                    hasattr(sized, "__len__")
                    and isinstance(times, int)
                    and len(sized) * times > MAX_REPEATED
                ):
                    raise OverflowError("the product is too large")
        return super().call_binop(context, operator, left, right)
