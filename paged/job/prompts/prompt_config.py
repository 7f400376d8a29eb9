"""PromptConfig: how a job makes the prompts of its rows."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.paged.job.prompts.template import PromptTemplate
from pagedrun.paged.values.flag import Flag, Form, Panel


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """Where the prompt comes from: the row's own columns, one named column, or a template.

    With `system`, messages get it in front unless they have one, and a plain prompt becomes the
    user message of a chat with it.
    """

    field: Annotated[
        str | None,
        Flag("Column that holds the prompt.", Panel.PROMPTS, "NAME", name="prompt_field"),
    ] = None
    template: Annotated[
        PromptTemplate | None,
        Flag(
            "Jinja template over a row's columns that makes its prompt, text or @file.",
            Panel.PROMPTS,
            "TEXT",
            form=Form.TEMPLATE,
            name="prompt_template",
        ),
    ] = None
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
