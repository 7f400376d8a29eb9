"""Prompt settings of a job, and its prompt template.

Jinja is imported when the first template is compiled: `--help` reads these types for its flags.
"""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.text.prompt import TEMPLATE_KWARGS, parse_template_kwargs, present
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.flags import Flag, Form, Panel
from pagedrun.paged.values.json_value import JSONValue

MAX_OUTPUT_CHARS = 16 * 2**20


class PromptTemplate:
    """Compiled prompt template; `flag` names it in messages.

    A column is a variable of its name; `row["any name"]` reaches the others. A missing name is an
    error, not an empty string. A prompt has at most `max_chars` characters. Raises `UsageError` if
    the template does not compile.
    """

    def __init__(
        self,
        source: str,
        flag: str = option("prompt_template"),
        max_chars: int = MAX_OUTPUT_CHARS,
    ) -> None:
        # Imported here: `--help` reads the type of a flag and must not load Jinja.
        from jinja2 import TemplateSyntaxError

        from pagedrun.paged.text.templates.sandbox import NamedUndefined, Sandbox

        self.source = source
        self._max_chars = max_chars
        self._sandbox = Sandbox(undefined=NamedUndefined)
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise UsageError(f"{flag}, line {error.lineno}: {error.message}") from error
        except Exception as error:  # of the parser and of Python's compiler, for deep nesting
            reason = str(error)[:200] or type(error).__name__
            raise UsageError(f"{flag} does not compile: {reason}") from error

    def render(self, columns: Columns) -> str:
        """Return the prompt of a row; `RowError` (`template_error`) if that fails."""
        from pagedrun.paged.text.templates.sandbox import MissingColumn

        try:
            text = self._sandbox.render(self._template, {"row": columns, **columns})
            if len(text) > self._max_chars:
                raise OverflowError(f"the output exceeds {self._max_chars} characters")
            text.encode("utf-8")
        except MissingColumn as error:
            name = shown_key(error.name)
            raise RowError(
                "template_error",
                f"the prompt template needs a column {name!r}, which the row does not have",
                param=name,
            ) from error
        except Exception as error:  # a template may raise any error
            reason = str(error)[:200].encode("utf-8", "replace").decode("utf-8")
            raise RowError(
                "template_error",
                f"the prompt template failed: {reason or type(error).__name__}",
            ) from error
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class PromptConfig:
    """Prompt settings: the row's own prompt columns, one named column, or a template.

    `raw` and `system` are those of `PromptReader`. `template_kwargs` are variables of the chat
    template. `time` is its clock for all rows, so that they get the same date in a run over
    midnight.

    Raises `UsageError` for forbidden `template_kwargs`.
    """

    field: Annotated[
        str | None,
        Flag("Column with the prompt.", Panel.PROMPTS, "NAME", name="prompt_field"),
    ] = None
    template: Annotated[
        PromptTemplate | None,
        Flag(
            "Jinja template that builds the prompt from a row's columns, text or @file.",
            Panel.PROMPTS,
            "TEXT",
            form=Form.TEMPLATE,
            name="prompt_template",
        ),
    ] = None
    template_kwargs: Annotated[
        Mapping[str, JSONValue],
        Flag(
            'Variables for the chat template, a JSON object such as {"enable_thinking": false}.',
            Panel.PROMPTS,
            "JSON",
            form=Form.JSON,
            name=TEMPLATE_KWARGS,
        ),
    ] = dataclasses.field(default_factory=dict)
    system: Annotated[
        str | None,
        Flag(
            "System prompt shared by all rows, text or @file. Rows with messages keep their own; a "
            "plain prompt becomes the user message after it.",
            Panel.PROMPTS,
            "TEXT",
            form=Form.PROSE,
        ),
    ] = None
    raw: Annotated[
        bool,
        Flag(
            "Complete each prompt as it is. Without it, a model with a chat template gets a "
            "plain prompt as a user message.",
            Panel.PROMPTS,
        ),
    ] = False
    time: datetime = dataclasses.field(default_factory=present, compare=False)

    def __post_init__(self) -> None:
        try:
            parse_template_kwargs(dict(self.template_kwargs))
        except RowError as error:
            reason = error.marked.removeprefix(TEMPLATE_KWARGS)
            raise UsageError(option(TEMPLATE_KWARGS) + reason) from error
