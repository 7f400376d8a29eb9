"""PromptConfig: how a job makes the prompts of its rows."""

from dataclasses import dataclass

from pagedrun.paged.job.prompts.template import PromptTemplate


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """Where the prompt comes from: the row's own columns, one named column, or a template.

    With `system`, messages get it in front unless they have one, and a plain prompt becomes the
    user message of a chat with it.
    """

    field: str | None = None
    template: PromptTemplate | None = None
    system: str | None = None
