"""Progress of a job: its listener, row counts and latest answers."""

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.metrics.report_sections import (
    Accuracy,
    ReasoningCounts,
    RowCounts,
    ScoredPromptFigures,
    VoteCounts,
)
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.text.prompt_reader import PromptModes
from pagedrun.paged.values.errors import EngineError, RowError, as_flag
from pagedrun.paged.values.logprobs import TokenLogprob
from pagedrun.paged.values.request import Completion


class Phase(StrEnum):
    """Phases of a job, in order."""

    READ = "reading rows"
    ENCODE = "encoding prompts"
    LOAD = "loading the model"
    COMPILE = "compiling the kernels (once on a machine; may take a minute)"
    CALIBRATE = "timing a few rows"  # only for `plan`
    PLAN = "planning"
    RUN = "running"
    FINISH = "writing the report"


@dataclass(frozen=True, slots=True)
class AnswerPreview:
    """Text of a row's answer, cut to MAX_CHARS; None for a failed row, with the reason in `error`.

    `index` is the row's position in the input, from 0.
    """

    index: int
    id: str | int
    text: str | None
    error: str | None = None

    @classmethod
    def of(cls, row: JobRow, completion: Completion) -> "AnswerPreview":
        """Return the answer or error of a completion."""
        if completion.error is not None:
            return cls.failed(row, completion.error)
        return cls(row.index, row.id, (completion.text or "")[:MAX_CHARS])

    @classmethod
    def failed(cls, row: JobRow, error: RowError) -> "AnswerPreview":
        """Return the error of an invalid row."""
        return cls(row.index, row.id, None, error.shown(as_flag)[:MAX_CHARS])


@dataclass(slots=True)
class AnswerLengths:
    """Tokens computed for all samples of each row; `most_allowed` is the largest limit."""

    count: int = 0
    total: int = 0
    longest: int = 0
    most_allowed: int = 0
    _squares: int = 0

    def allow(self, num_tokens: int) -> None:
        """Include the limit of a row."""
        self.most_allowed = max(self.most_allowed, num_tokens)

    def note(self, num_tokens: int) -> None:
        """Count a row."""
        self.count += 1
        self.total += num_tokens
        self.longest = max(self.longest, num_tokens)
        self._squares += num_tokens * num_tokens

    @property
    def mean(self) -> float:
        """Mean length, 0 without rows."""
        return self.total / max(self.count, 1)

    @property
    def spread(self) -> float:
        """Standard deviation as a share of the mean; 1 with too few rows."""
        if self.count < 2 or not self.total:
            return 1.0
        variance = max(self._squares / self.count - self.mean**2, 0.0)
        return float(variance**0.5 / self.mean)


@dataclass(slots=True)
class ScoredPrompts:
    """Number of prompts and of their scored tokens (all but the first of each), and sum of
    log-probabilities.
    """

    num_rows: int = 0
    num_tokens: int = 0
    logprob: float = 0.0

    def add(self, tokens: Iterable[TokenLogprob | None]) -> None:
        """Count a prompt."""
        known = [token.logprob for token in tokens if token is not None]
        self.num_rows += 1
        self.num_tokens += len(known)
        self.logprob += sum(known)

    def to_dict(self) -> ScoredPromptFigures | None:
        """Return the report's `scored_prompts`; None without any.

        The perplexity is null if it exceeds a float.
        """
        if not self.num_tokens:
            return None
        perplexity: float | None
        try:
            perplexity = math.exp(-self.logprob / self.num_tokens)
        except OverflowError:
            perplexity = None
        return {
            "rows": self.num_rows,
            "tokens": self.num_tokens,
            "logprob": self.logprob,
            "perplexity": perplexity,
        }


@dataclass(slots=True)
class Tally:
    """Row counts of a job with `total` rows so far; `has_more` until the last window is taken.

    `skipped` rows were in the output of an earlier run, `skipped_failed` of them with an error.
    Accuracy counts rows with an `expected` answer.
    """

    total: int
    has_more: bool = False
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    skipped_failed: int = 0
    num_expected: int = 0
    num_correct: int = 0
    num_thoughts: int = 0
    num_cut_thoughts: int = 0
    num_votes: int = 0
    num_samples: int = 0  # samples requested by rows with a vote
    num_drawn: int = 0  # drawn samples
    has_earlier: bool = False  # whether an earlier run's answers are reused
    copied: int = 0
    continued: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # failed rows by error code
    scored: ScoredPrompts = field(default_factory=ScoredPrompts)
    lengths: AnswerLengths = field(default_factory=AnswerLengths)

    def note_failed(self, row: JobRow, error: RowError) -> None:
        """Count a row without an answer."""
        self.failed += 1
        self.errors[error.code] += 1
        self.finish_reasons["error"] += 1
        self.num_expected += row.expected is not None

    def note_completion(self, row: JobRow, completion: Completion) -> None:
        """Count a row returned by the engine, answered or not."""
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
        """Rows in the output so far, those of an earlier run included."""
        return self.ok + self.failed + self.skipped

    @property
    def num_failed(self) -> int:
        """Failed rows in the output, those of an earlier run included."""
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
        """Return the `accuracy` object of the report; None without expected answers."""
        if not self.num_expected:
            return None
        return {"expected": self.num_expected, "correct": self.num_correct}

    def reasoning(self) -> ReasoningCounts | None:
        """Return the `reasoning` object of the report, in rows; None without reasoning."""
        if not self.num_thoughts:
            return None
        return {"rows": self.num_thoughts, "cut": self.num_cut_thoughts}

    def votes(self) -> VoteCounts | None:
        """Return the `votes` object of the report; None without votes."""
        if not self.num_votes:
            return None
        return {"rows": self.num_votes, "samples": self.num_samples, "drawn": self.num_drawn}


class JobListener:
    """Callbacks of a job, which ignore everything here; called in its own thread.

    They must return soon and must not raise.
    """

    def on_phase(self, phase: Phase) -> None:
        """Handle the start of a phase."""

    def on_prompts(self, modes: PromptModes) -> None:
        """Handle the prompt modes of the encoded first window."""

    def on_step(self, record: StepRecord) -> None:
        """Handle the engine's state after a step."""

    def on_answer(self, answer: AnswerPreview) -> None:
        """Handle a written row."""

    def on_tally(self, tally: Tally) -> None:
        """Handle the counts: after reading all rows, and after each written row."""

    def on_warning(self, message: str) -> None:
        """Handle a warning for the user."""


MAX_CHARS = 2000  # more than any screen shows

NUM_KEPT = 3


class FirstAnswers:
    """Answers to the first NUM_KEPT rows, by index, of all that are added."""

    def __init__(self) -> None:
        self._kept: list[AnswerPreview] = []

    def add(self, answer: AnswerPreview) -> None:
        """Keep `answer` if its row precedes a kept one."""
        if len(self._kept) < NUM_KEPT or answer.index < self._kept[-1].index:
            insort(self._kept, answer, key=lambda each: each.index)
            del self._kept[NUM_KEPT:]

    def kept(self) -> tuple[AnswerPreview, ...]:
        """Return the answers in input order."""
        return tuple(self._kept)


class PendingRows:
    """Pending rows by index; each gets one completion with as many answers as requested."""

    def __init__(self) -> None:
        self._rows: dict[int, JobRow] = {}  # by index

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, rows: Iterable[JobRow]) -> None:
        """Add rows whose requests are given to the engine."""
        self._rows |= {row.index: row for row in rows}

    def take(self, completion: Completion) -> JobRow:
        """Remove and return the row of `completion`.

        Raises `EngineError` if no such row is pending, or for a wrong number of answers.
        """
        row = self._rows.pop(completion.request.index, None)
        if row is None:
            raise EngineError(
                f"row {completion.request.index} was answered twice or never asked; please report "
                "this"
            )
        if row.request is not None and row.request.texts:
            return row
        vote, num_asked = completion.vote, completion.request.params.n
        expected = num_asked if vote is None else vote.drawn
        num_answers = len(completion.scores or completion.outputs)
        if completion.error is None and num_answers != expected:
            raise EngineError(
                f"row {row.index} has {num_answers} answers instead of {expected}; please report "
                "this"
            )
        return row
