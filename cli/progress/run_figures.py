"""Figures of a running job, their listener, and the time left.

The time left is an interval. Its width follows from the answer lengths so far and from the
variation of the run's speed, for example by other programs on the processor.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import numpy as np

from pagedrun.paged.job.progress import AnswerLengths, AnswerPreview, JobListener, Phase, Tally
from pagedrun.paged.metrics.step_costs import USUAL_NEW_TOKEN, USUAL_STEP
from pagedrun.paged.metrics.timeline import Decimated, ReplicaState, ReplicatedStep, StepRecord
from pagedrun.paged.text.prompt_reader import PromptModes
from pagedrun.paged.values.errors import as_flag, spelled

# Spread of the cost of rows besides answer length, relative to the mean.
OTHER_SPREAD = 0.3
LEAST_WIDTH = 0.25  # other load on the machine; similar rows are adjacent
DISTURBED_S = 1.0  # possible delay by other programs
ALONE_SHARE = 0.33  # of the longest answer, computed in a batch that is no longer full
DEVIATIONS = 1.6  # standard deviations of a 90 % interval


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Interval of the seconds left, with the best guess in it."""

    low_s: float
    high_s: float
    guess_s: float

    @classmethod
    def of(
        cls,
        run_s: float,
        step_s: float,
        record: StepRecord,
        lengths: AnswerLengths,
        speed_spread: float = 0.0,
    ) -> "TimeLeft | None":
        """Return the time left of a run; None before the first finished row.

        run_s: seconds since its beginning. step_s: current seconds per step. lengths: answer
        lengths of finished rows. speed_spread: standard deviation of the logarithm of the speed.

        The work left is that of waiting rows and the rest of running rows. The rest of a running
        row is at least the mean length minus its tokens, and at most the mean residual length, in
        which long answers weigh more. The mean length is at least that of finished rows, and at
        most the mean if all running answers reach their limit. Time spent so far covers at most the
        rows begun. The interval is widened by the sampling error of few rows, and by the longest
        answer, which is computed alone at the end. Its ends are scaled by the variation of the
        speed, and by a possible disturbance of a young run.

        The guess takes the mean residual length for running answers, and the mean over both kinds
        for waiting rows. A part of the longest answer runs in a small batch, at another speed; at
        the end of the run it alone may determine the time.
        """
        left = record.total - record.finished
        if not lengths.count or record.generated_tokens <= 0:
            return None
        waiting = min(record.waiting, left)
        under_way, num_new = left - waiting, max(record.generated_tokens - lengths.total, 0)
        cut = under_way * max(lengths.most_allowed, lengths.longest)
        least, most = lengths.mean, (lengths.total + cut) / (lengths.count + under_way)
        low = waiting * least + max(under_way * least - num_new, 0.0)
        met = max(most * (1 + lengths.spread**2) / 2, most)
        high = waiting * most + under_way * met
        unknown = (1 / lengths.count + 1 / max(left, 1)) ** 0.5
        width = 1 + LEAST_WIDTH + DEVIATIONS * (lengths.spread + OTHER_SPREAD) * unknown
        token_s = run_s / record.generated_tokens
        # An answer of n tokens so far is likely to have n more.
        longest = max(lengths.longest, 2 * num_new / max(under_way, 1))
        tail_s = longest * step_s if left else 0.0
        begun = max(record.total - waiting, 1)
        least_s = min(low * token_s, run_s * waiting / begun)
        swing = exp(speed_spread) * (1 + DISTURBED_S / max(run_s, DISTURBED_S))
        low_s, high_s = least_s / width / swing, (high * token_s * width + tail_s) * swing
        guess_s = _guess(lengths, waiting, under_way, num_new, token_s, step_s)
        return cls(low_s, high_s, min(max(guess_s, low_s), high_s))

    @classmethod
    def of_prompts(
        cls, run_s: float, record: StepRecord, speed_spread: float = 0.0
    ) -> "TimeLeft | None":
        """Return the time left of a run that computes prompts only; None before the first one.

        Prompts take time by their tokens. The range is widened as in `of`.
        """
        done = record.prompt_tokens_done
        if done <= 0:
            return None
        guess_s = run_s * max(record.all_prompt_tokens - done, 0) / done
        width = (1 + LEAST_WIDTH) * exp(speed_spread) * (1 + DISTURBED_S / max(run_s, DISTURBED_S))
        return cls(guess_s / width, guess_s * width, guess_s)


def _guess(
    lengths: AnswerLengths,
    waiting: int,
    under_way: int,
    num_new: int,
    token_s: float,
    step_s: float,
) -> float:
    """Return the likely seconds of waiting and running rows; the latter have `num_new` tokens."""
    age = num_new / max(under_way, 1)
    cap = max(lengths.most_allowed, lengths.longest)
    met = lengths.mean * (1 + lengths.spread**2) / 2
    length = min(max(age + met, lengths.mean), cap)
    mean = (lengths.total + under_way * length) / (lengths.count + under_way)
    rest = max(length - age, 0.0)
    work_s = (waiting * mean + under_way * rest) * token_s
    if waiting:
        return work_s + ALONE_SHARE * lengths.longest * step_s
    return max(work_s, max(lengths.longest - age, rest) * step_s if under_way else 0.0)


RATE_WINDOW_SECONDS = 10.0
MIN_ROWS_OF_A_RATE = 10  # below this the rate is noise


@dataclass(frozen=True, slots=True)
class ProgressFigures:
    """Figures of a progress display. Times are in seconds; rates are over the last seconds.

    `rows_done` counts all rows in the output: `rows_before` by earlier runs, `rows_answered` by
    this one. `has_more_rows`: the input is not read to its end, so that `rows_total` and times are
    those of the rows so far. `generates`: rows have answers to generate; `has_pool`: they have
    keys and values in a pool. `prompt_tokens_done` counts tokens computed or found in the cache, of
    those of all rows to run. `eta_s` is the best guess of the time left, `eta_low_s` and
    `eta_high_s` its range; None before the first finished row. `pool_use` and `hit_rate` are
    fractions. `reads`: of streamed weights, None if all are in memory. `tokens_per_step`: of a
    sequence, above 1 with right drafts. `replicas` is empty for a single engine.
    """

    phase: Phase
    elapsed_s: float
    rows_done: int
    rows_total: int
    has_more_rows: bool
    rows_failed: int
    rows_before: int
    rows_answered: int
    rows_per_s: float
    generates: bool
    prompt_tokens_done: int
    prompt_tokens_total: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    has_pool: bool
    pool_use: float
    hit_rate: float
    running: int
    waiting: int
    preemptions: int
    eta_s: float | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    reads: "WeightReads | None" = None
    tokens_per_step: float = 1.0
    replicas: tuple[ReplicaState, ...] = ()

    @property
    def time_left(self) -> TimeLeft | None:
        """Time left: the guess and its range."""
        if self.eta_s is None or self.eta_low_s is None or self.eta_high_s is None:
            return None
        return TimeLeft(self.eta_low_s, self.eta_high_s, self.eta_s)

    @property
    def is_before_first_row(self) -> bool:
        """True before the first finished row, while the work consists mostly of prompts."""
        return (
            not self.rows_answered
            and self.prompt_tokens_done < self.prompt_tokens_total
            and self.prompt_tokens_per_s >= self.generated_tokens_per_s
        )


@dataclass(frozen=True, slots=True)
class WeightReads:
    """Reads of streamed weights: passes and bytes so far, bytes per second and the share of the
    time spent waiting over the last seconds."""

    passes: int
    num_bytes: int
    bytes_per_s: float
    wait_share: float


class ProgressFiguresListener(JobListener):
    """`JobListener` with the latest figures; any thread may call `figures`.

    `warn`, `enter` and `tell` are called in the job's thread for warnings, phases and prompt modes.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        enter: Callable[[Phase], None] = lambda phase: None,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[PromptModes], None] = lambda modes: None,
    ) -> None:
        self._warn = warn
        self._enter = enter
        self._tell = tell
        self._clock = clock
        self._began = clock()
        self._phase = Phase.READ
        self.run_began = self._began
        self._tally: Tally | None = None
        self._samples: deque[StepRecord] = deque()
        self._replicas: tuple[ReplicaState, ...] = ()
        self._speed = SpeedLog()
        self._latest: AnswerPreview | None = None

    def on_phase(self, phase: Phase) -> None:
        """Set the phase."""
        self._phase = phase
        if phase is Phase.RUN:
            self.run_began = self._clock()
        self._enter(phase)

    def on_prompts(self, modes: PromptModes) -> None:
        """Forward the prompt modes."""
        self._tell(modes)

    def on_step(self, record: StepRecord) -> None:
        """Keep the records of the last seconds."""
        if isinstance(record, ReplicatedStep):
            self._replicas = record.replicas
        samples = self._samples
        samples.append(record)
        while len(samples) > 2 and record.t - samples[0].t > RATE_WINDOW_SECONDS:
            samples.popleft()
        self._speed.note(record)

    def on_answer(self, answer: AnswerPreview) -> None:
        """Keep the latest answer."""
        self._latest = answer

    def on_tally(self, tally: Tally) -> None:
        """Keep the counts."""
        self._tally = tally

    def on_warning(self, message: str) -> None:
        """Forward a warning, with options as flags."""
        self._warn(spelled(message, as_flag))

    @property
    def latest(self) -> AnswerPreview | None:
        """Latest written answer, None before the first."""
        return self._latest

    def figures(self) -> ProgressFigures:
        """Return the current figures."""
        now, record, tally = self._clock(), self._record, self._tally
        done = tally.num_rows if tally is not None else 0
        total = tally.total if tally is not None else record.total if record is not None else 0
        prompt_rate, generated_rate = self._rates()
        left = self._time_left(now)
        generates = tally is None or tally.lengths.most_allowed > 0
        return ProgressFigures(
            phase=self._phase,
            elapsed_s=now - self._began,
            rows_done=done,
            rows_total=total,
            has_more_rows=tally is not None and tally.has_more,
            rows_failed=tally.num_failed if tally is not None else 0,
            rows_before=tally.skipped if tally is not None else 0,
            rows_answered=tally.ok if tally is not None else 0,
            rows_per_s=self._rows_per_s(),
            generates=generates,
            prompt_tokens_done=record.prompt_tokens_done if record else 0,
            prompt_tokens_total=record.all_prompt_tokens if record else 0,
            prompt_tokens_per_s=prompt_rate,
            generated_tokens_per_s=generated_rate,
            has_pool=generates if record is None else record.blocks_total > 0,
            pool_use=record.blocks_used / max(record.blocks_total, 1) if record else 0.0,
            hit_rate=record.cached_tokens / max(record.prompt_tokens, 1) if record else 0.0,
            running=record.running if record else 0,
            waiting=record.waiting if record else 0,
            preemptions=record.preemptions if record else 0,
            eta_s=None if left is None else left.guess_s,
            eta_low_s=None if left is None else left.low_s,
            eta_high_s=None if left is None else left.high_s,
            reads=self._reads(),
            tokens_per_step=self._tokens_per_step(),
            replicas=self._replicas,
        )

    def _tokens_per_step(self) -> float:
        if not self._samples:
            return 1.0
        generated, accepted = self._gained("generated_tokens", "accepted_drafts")
        return generated / max(generated - accepted, 1)  # the others had a step of a sequence each

    def _reads(self) -> WeightReads | None:
        record = self._record
        if record is None or not record.bytes_read:
            return None
        seconds, num_bytes, wait_s = self._gained("t", "bytes_read", "wait_s")
        seconds = max(seconds, 1e-9)
        return WeightReads(
            record.step, record.bytes_read, num_bytes / seconds, min(wait_s / seconds, 1.0)
        )

    @property
    def _record(self) -> StepRecord | None:
        """Latest record."""
        return self._samples[-1] if self._samples else None

    def _gained(self, *names: str) -> list[float]:
        """Return the increase of fields over the last seconds; of a single record, its values."""
        first, last = self._samples[0], self._samples[-1]
        return [getattr(last, n) - (0 if first is last else getattr(first, n)) for n in names]

    def _rates(self) -> tuple[float, float]:
        """Return prompt and generated tokens per second, over the last seconds."""
        if not self._samples:
            return 0.0, 0.0
        names = "t", "prompt_tokens_done", "generated_tokens"
        seconds, prompt, generated = self._gained(*names)
        return prompt / max(seconds, 1e-9), generated / max(seconds, 1e-9)

    def _time_left(self, now: float) -> TimeLeft | None:
        record, tally = self._record, self._tally
        if self._phase is not Phase.RUN or record is None or tally is None:
            return None
        run_s, lengths = now - self.run_began, tally.lengths
        if not lengths.most_allowed:
            return TimeLeft.of_prompts(run_s, record, self._speed.spread)
        # Steps of all replicas, which run concurrently.
        num_beside = max(sum(each.is_running for each in self._replicas), 1)
        span_s, num_steps = self._gained("t", "step")
        step_s = num_beside * span_s / max(num_steps, 1)
        return TimeLeft.of(run_s, step_s, record, lengths, self._speed.spread)

    def _rows_per_s(self) -> float:
        """Return rows per second, over the last seconds or, with few rows in these, over the
        run."""
        record, tally = self._record, self._tally
        if record is None or tally is None:
            return 0.0
        first = self._samples[0]
        recent = record.finished - first.finished
        if recent >= MIN_ROWS_OF_A_RATE:
            return recent / max(record.t - first.t, 1e-9)
        return tally.ok / max(record.t, 1e-9)


NUM_MARKS = 128
NUM_PARTS = 8
MIN_PARTS = 3
MIN_PART_S = 0.5  # shorter parts vary with the work of single steps


class SpeedLog:
    """Log of the work done over time.

    Work is in prompt tokens; a step and a generated token count as `USUAL_STEP` and
    `USUAL_NEW_TOKEN` of them, which makes phases of prefill and decoding comparable.
    """

    def __init__(self) -> None:
        self._marks: Decimated[tuple[float, float]] = Decimated(NUM_MARKS)

    def note(self, record: StepRecord) -> None:
        """Log a step."""
        if self._marks.wants(record.step):
            num_prompt = record.prompt_tokens_done - record.cached_tokens
            num_new = record.generated_tokens * USUAL_NEW_TOKEN
            done = record.step * USUAL_STEP + num_prompt + num_new
            self._marks.add(record.step, (record.t, done))

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of the speed, over equal parts of the run; 0 for
        fewer than `MIN_PARTS` parts."""
        marks = self._marks.items
        part_s = max(marks[-1][0] / NUM_PARTS, MIN_PART_S) if marks else MIN_PART_S
        # Replicas report at intervals; no work is known between two reports.
        speeds, began_s, before = [], 0.0, 0.0
        for at_s, done in marks:
            if at_s - began_s >= part_s and done > before:
                speeds.append(log((done - before) / (at_s - began_s)))
                began_s, before = at_s, done
        return float(np.std(speeds)) if len(speeds) >= MIN_PARTS else 0.0
