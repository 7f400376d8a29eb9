"""PromptTemplate: a Jinja template over a row's columns, in a sandbox, with limits on its work."""

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.values.errors import RowError, UsageError, option

MAX_OUTPUT_CHARS = 64 * 2**20


class PromptTemplate:
    """A compiled template; `flag` names it in messages.

    A column is a variable of its name; `row["any name"]` reaches the others. A name that is not
    there is an error, not an empty string. A prompt has at most `max_chars` characters. Raises
    `UsageError` if the template does not compile.
    """

    def __init__(
        self,
        source: str,
        flag: str = option("prompt_template"),
        max_chars: int = MAX_OUTPUT_CHARS,
    ) -> None:
        # Here, because a command's `--help` reads the type of a flag and must not wait for Jinja.
        from jinja2 import TemplateError, TemplateSyntaxError

        from pagedrun.paged.job.prompts.missing_column import NamedUndefined
        from pagedrun.paged.text.sandbox import Sandbox

        self.source = source
        self._max_chars = max_chars
        self._sandbox = Sandbox(undefined=NamedUndefined)
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise UsageError(f"{flag}, line {error.lineno}: {error.message}") from error
        except (TemplateError, RecursionError) as error:
            raise UsageError(f"{flag} does not compile: {error}") from error

    def render(self, columns: Columns) -> str:
        """Return the prompt of a row; `RowError` (`template_error`) if that fails."""
        from pagedrun.paged.job.prompts.missing_column import MissingColumn

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
        except Exception as error:  # a template may raise whatever its expressions raise
            reason = str(error)[:200].encode("utf-8", "replace").decode("utf-8")
            raise RowError(
                "template_error",
                f"the prompt template failed: {reason or type(error).__name__}",
            ) from error
        return text
