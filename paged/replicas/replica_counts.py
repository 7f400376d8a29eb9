"""ReplicaCounts: what the driver counts of a run that others compute."""

from collections import Counter
from dataclasses import dataclass, field

from pagedrun.paged.report.record.decimated import Decimated
from pagedrun.paged.report.record.timeline import TIMELINE_RECORDS, StepRecord
from pagedrun.paged.values.planned_request import PlannedSharing
from pagedrun.paged.values.request import Completion


@dataclass(slots=True)
class ReplicaCounts:
    """Tokens of `copied` answers are those of rows that ask the same as another; `num_twice` are
    rows that two replicas have answered."""

    num_total: int = 0
    num_finished: int = 0
    num_twice: int = 0
    num_given_up: int = 0
    num_deaths: int = 0
    plan_s: float = 0.0
    run_s: float = 0.0
    prompt_tokens: int = 0  # of all rows, each counted once
    achievable_hit_tokens: int = 0
    block_hit_tokens: int = 0
    common_tokens: int = 0
    duplicate_rows: int = 0
    copied_prompt_tokens: int = 0
    copied_tokens: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    timeline: Decimated[StepRecord] = field(default_factory=lambda: Decimated(TIMELINE_RECORDS))

    def note_sharing(self, planned: PlannedSharing) -> None:
        """Count what a window has in common."""
        self.achievable_hit_tokens += planned.achievable_hit_tokens
        self.block_hit_tokens += planned.block_hit_tokens
        self.common_tokens += planned.common_tokens
        self.duplicate_rows += planned.num_duplicates

    def note_completion(self, completion: Completion) -> None:
        """Count a row that is answered now."""
        self.num_finished += 1
        if completion.is_copied:
            return
        self.finish_reasons.update(completion.finish_reasons)
        self.copied_tokens += completion.num_copied_tokens
        if completion.is_duplicate and completion.error is None:
            self.copied_prompt_tokens += completion.num_cached_tokens
