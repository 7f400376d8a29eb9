"""Tally: how the rows of a job ended, counted as they are written."""

from collections import Counter
from dataclasses import dataclass, field

from pagedrun.paged.job.progress.answer_lengths import AnswerLengths
from pagedrun.paged.job.progress.scored_prompts import ScoredPrompts
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.report.record.report_sections import (
    Accuracy,
    ReasoningCounts,
    RowCounts,
    VoteCounts,
)
from pagedrun.paged.values.errors import EngineError, RowError
from pagedrun.paged.values.request import Completion


@dataclass(slots=True)
class Tally:
    """Counts of a job with `total` rows. `skipped` rows were in the output of an earlier run, of
    which `skipped_failed` have an error for an answer. Accuracy counts rows that name an `expected`
    answer."""

    total: int
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    skipped_failed: int = 0
    num_expected: int = 0
    num_correct: int = 0
    num_thoughts: int = 0
    num_cut_thoughts: int = 0
    num_votes: int = 0
    num_samples: int = 0  # that rows with a vote asked for
    num_drawn: int = 0  # of these
    has_earlier: bool = False  # whether answers are taken from an earlier run
    copied: int = 0
    continued: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # failed rows by the code of their error
    scored: ScoredPrompts = field(default_factory=ScoredPrompts)
    lengths: AnswerLengths = field(default_factory=AnswerLengths)

    def note_failed(self, row: JobRow, error: RowError) -> None:
        """Count a row that was never asked of the engine, or that it could not answer."""
        self.failed += 1
        self.errors[error.code] += 1
        self.finish_reasons["error"] += 1
        self.num_expected += row.expected is not None

    def note_completion(self, row: JobRow, completion: Completion) -> None:
        """Count a row that came back from the engine, answered or not."""
        if completion.error is not None:
            self.note_failed(row, completion.error)
            return
        self.ok += 1
        self.copied += completion.is_copied
        self.continued += completion.num_begun_tokens > 0
        self.lengths.note(completion.num_computed_tokens)
        self.finish_reasons.update(completion.finish_reasons)
        self.num_thoughts += any(output.reasoning is not None for output in completion.outputs)
        self.num_cut_thoughts += any(output.is_cut_thought for output in completion.outputs)
        if row.expected is not None:
            self.num_expected += 1
            vote = completion.vote
            answer = completion.text if vote is None else vote.winner
            self.num_correct += (answer or "").strip() == row.expected.strip()
        if completion.prompt_logprobs is not None:
            self.scored.add(completion.prompt_logprobs)
        if completion.vote is not None:
            self.num_votes += 1
            self.num_samples += completion.request.params.n
            self.num_drawn += completion.vote.drawn

    def check(self) -> None:
        """Raise `EngineError` unless every row was counted once."""
        if self.num_rows != self.total:
            raise EngineError(
                f"{self.total} rows were read but {self.num_rows} are accounted for; please "
                "report this"
            )

    @property
    def num_rows(self) -> int:
        """Rows that are in the output by now, those of an earlier run included."""
        return self.ok + self.failed + self.skipped

    @property
    def num_failed(self) -> int:
        """Rows in the output that have an error for an answer, those of an earlier run included."""
        return self.failed + self.skipped_failed

    def rows(self) -> RowCounts:
        """Return the `rows` object of report and manifest."""
        counts: RowCounts = {
            "total": self.total,
            "ok": self.ok,
            "failed": self.failed,
            "skipped": self.skipped,
        }
        if self.skipped_failed:
            counts["skipped_failed"] = self.skipped_failed
        if self.has_earlier:
            counts["copied"] = self.copied
            counts["continued"] = self.continued
            counts["computed"] = self.ok - self.copied - self.continued
        return counts

    def accuracy(self) -> Accuracy | None:
        """Return the `accuracy` object of the report; None if no row names an answer."""
        if not self.num_expected:
            return None
        return {"expected": self.num_expected, "correct": self.num_correct}

    def reasoning(self) -> ReasoningCounts | None:
        """Return the `reasoning` object of the report, in rows; None if no answer has a thought."""
        if not self.num_thoughts:
            return None
        return {"rows": self.num_thoughts, "cut": self.num_cut_thoughts}

    def votes(self) -> VoteCounts | None:
        """Return the `votes` object of the report; None if no row has one."""
        if not self.num_votes:
            return None
        return {"rows": self.num_votes, "samples": self.num_samples, "drawn": self.num_drawn}
