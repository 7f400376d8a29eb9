"""PromptConfig: how a job makes the prompts of its rows."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from pagedrun.paged.job.prompts.template import PromptTemplate
from pagedrun.paged.text.prompts.prompt_time import present
from pagedrun.paged.text.prompts.template_kwargs import TEMPLATE_KWARGS, checked_kwargs
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.flags import Flag, Form, Panel
from pagedrun.paged.values.json_value import JSONValue


@dataclasses.dataclass(frozen=True, slots=True)
class PromptConfig:
    """Where the prompt comes from: the row's own columns, one named column, or a template.

    `raw` and `system` are those of `PromptRenderer`. `template_kwargs` are for the chat template.
    `time` is what the clock of the chat template says in all of them: a run over midnight asks all
    rows the same.

    Raises `UsageError` for `template_kwargs` that no template may be given.
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
            checked_kwargs(dict(self.template_kwargs))
        except RowError as error:
            reason = error.marked.removeprefix(TEMPLATE_KWARGS)
            raise UsageError(option(TEMPLATE_KWARGS) + reason) from error
