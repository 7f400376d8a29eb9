"""Usage: the tokens of a row, and what was cut to make it fit."""

from dataclasses import dataclass

from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.request import Completion


@dataclass(frozen=True, slots=True)
class Usage:
    """The object under `usage` in an output row."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    truncated_tokens: int
    max_tokens_clamped: bool

    @classmethod
    def of(cls, row: JobRow, completion: Completion | None = None) -> "Usage":
        """Return what the row took; without a completion, nothing but its prompt."""
        outputs = () if completion is None else completion.outputs
        return cls(
            prompt_tokens=row.num_prompt_tokens,
            cached_tokens=0 if completion is None else completion.num_cached_tokens,
            completion_tokens=sum(len(output.token_ids) for output in outputs),
            truncated_tokens=row.num_truncated_tokens,
            max_tokens_clamped=row.clamped,
        )
