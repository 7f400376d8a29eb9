"""Figures of a running job, the listener that gathers them, and the time that is left.

The time left is an interval. Its width comes from the answer lengths seen so far and from the
variation of the run's own speed, as other programs take the processor from it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import numpy as np

from pagedrun.paged.job.progress import AnswerLengths, AnswerPreview, Phase, Tally
from pagedrun.paged.metrics.step_costs import USUAL_NEW_TOKEN, USUAL_STEP
from pagedrun.paged.metrics.timeline import Decimated, ReplicaState, ReplicatedStep, StepRecord
from pagedrun.paged.text.prompt_reader import PromptModes
from pagedrun.paged.values.errors import as_flag, spelled

# What rows differ in besides the length of their answers, as a share of the mean.
OTHER_SPREAD = 0.3
LEAST_WIDTH = 0.25  # machines have other work, and rows of one kind come together
DISTURBED_S = 1.0  # that other programs may take at any time
ALONE_SHARE = 0.33  # of the longest answer, for which the batch is not full any more
DEVIATIONS = 1.6  # nine in ten draws are within so many standard deviations


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds, at least and at most, and between them the best guess."""

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
        """Return what is left of a run; None while no row has come back.

        run_s: since it began. step_s: what a step takes at present. lengths: of the answers that
        came back. speed_spread: the standard deviation of the speed's logarithm.

        What is left is what the waiting rows have before them, and those under way: at least what
        the mean answer leaves of theirs, and at most what is left of answers that one comes upon,
        which are the long ones. The mean is at least that of the answers that came back, and at
        most what it is if all others under way become as long as they may. What was spent so far
        has paid for no more than the rows that were begun. To that comes what so few rows cannot
        tell, and the longest answer, as at the end there are no others to compute beside it. What
        is left may run as much faster or slower as parts of the run did, and of a young run it is
        not known yet whether it was disturbed.

        The guess takes the answers under way for as far as answers of this spread still go on
        average when one comes upon them, and those of waiting rows for the mean of both kinds. Some
        of the time that the longest takes is spent beside few others, which is not the speed so
        far; at the end of the run that answer alone may decide.
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
        # Who has come so far is likely to go as far again.
        longest = max(lengths.longest, 2 * num_new / max(under_way, 1))
        tail_s = longest * step_s if left else 0.0
        begun = max(record.total - waiting, 1)
        least_s = min(low * token_s, run_s * waiting / begun)
        swing = exp(speed_spread) * (1 + DISTURBED_S / max(run_s, DISTURBED_S))
        low_s, high_s = least_s / width / swing, (high * token_s * width + tail_s) * swing
        guess_s = _guess(lengths, waiting, under_way, num_new, token_s, step_s)
        return cls(low_s, high_s, min(max(guess_s, low_s), high_s))


def _guess(
    lengths: AnswerLengths,
    waiting: int,
    under_way: int,
    num_new: int,
    token_s: float,
    step_s: float,
) -> float:
    """Return the seconds that the waiting rows and those under way, which have `num_new` tokens
    together, are likely to take."""
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
MIN_ROWS_OF_A_RATE = 10  # fewer came back by chance


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a progress display shows. Times are seconds; rates are those of the last seconds.

    `rows_done` are all rows in the output, of which `rows_before` were there when the run began and
    `rows_answered` came back from the engine with an answer since then. `prompt_tokens_done` were
    computed or taken from the cache, of those of all rows that are to be run. `eta_s` is the best
    guess of the time left, `eta_low_s` and `eta_high_s` are its range; all three are None while no
    row has come back. `pool_use` and `hit_rate` are fractions. `replicas` are those of a run that
    several engines compute.
    """

    phase: Phase
    elapsed_s: float
    rows_done: int
    rows_total: int
    rows_failed: int
    rows_before: int
    rows_answered: int
    rows_per_s: float
    prompt_tokens_done: int
    prompt_tokens_total: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    pool_use: float
    hit_rate: float
    running: int
    waiting: int
    preemptions: int
    eta_s: float | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    replicas: tuple[ReplicaState, ...] = ()

    @property
    def time_left(self) -> TimeLeft | None:
        """The time left: the guess and its range."""
        if self.eta_s is None or self.eta_low_s is None or self.eta_high_s is None:
            return None
        return TimeLeft(self.eta_low_s, self.eta_high_s, self.eta_s)

    @property
    def is_before_first_row(self) -> bool:
        """Whether no row has come back yet and most of the work is computing prompts."""
        return (
            not self.rows_answered
            and self.prompt_tokens_done < self.prompt_tokens_total
            and self.prompt_tokens_per_s >= self.generated_tokens_per_s
        )


class RunFiguresListener:
    """A `JobListener` that keeps the latest of everything; any thread may read `figures`.

    `warn`, `enter` and `tell` are called, in the job's thread, for a warning, for a new phase and
    for how prompts are read.
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
        self._record: StepRecord | None = None
        self._tally: Tally | None = None
        self._samples: deque[StepRecord] = deque()
        self._replicas: tuple[ReplicaState, ...] = ()
        self._speed = SpeedLog()
        self._latest: AnswerPreview | None = None

    def on_phase(self, phase: Phase) -> None:
        """Note the phase."""
        self._phase = phase
        if phase is Phase.RUN:
            self.run_began = self._clock()
        self._enter(phase)

    def on_prompts(self, modes: PromptModes) -> None:
        """Pass it on."""
        self._tell(modes)

    def on_step(self, record: StepRecord) -> None:
        """Keep the record, and those of the last seconds for the rates."""
        if isinstance(record, ReplicatedStep):
            self._replicas = record.replicas
        samples = self._samples
        samples.append(record)
        while len(samples) > 2 and record.t - samples[0].t > RATE_WINDOW_SECONDS:
            samples.popleft()
        self._record = record
        self._speed.note(record)

    def on_answer(self, answer: AnswerPreview) -> None:
        """Keep it as the latest."""
        self._latest = answer

    def on_tally(self, tally: Tally) -> None:
        """Keep the counts."""
        self._tally = tally

    def on_warning(self, message: str) -> None:
        """Pass it on, its options as flags."""
        self._warn(spelled(message, as_flag))

    @property
    def latest(self) -> AnswerPreview | None:
        """The answer that was written last; None before the first."""
        return self._latest

    def figures(self) -> RunFigures:
        """Return the numbers of this moment."""
        now, record, tally = self._clock(), self._record, self._tally
        done = tally.num_rows if tally is not None else 0
        total = tally.total if tally is not None else record.total if record is not None else 0
        prompt_rate, generated_rate = self._rates()
        left = self._time_left(now)
        return RunFigures(
            phase=self._phase,
            elapsed_s=now - self._began,
            rows_done=done,
            rows_total=total,
            rows_failed=tally.num_failed if tally is not None else 0,
            rows_before=tally.skipped if tally is not None else 0,
            rows_answered=tally.ok if tally is not None else 0,
            rows_per_s=self._rows_per_s(),
            prompt_tokens_done=record.prompt_tokens_done if record else 0,
            prompt_tokens_total=record.all_prompt_tokens if record else 0,
            prompt_tokens_per_s=prompt_rate,
            generated_tokens_per_s=generated_rate,
            pool_use=record.blocks_used / max(record.blocks_total, 1) if record else 0.0,
            hit_rate=record.cached_tokens / max(record.prompt_tokens, 1) if record else 0.0,
            running=record.running if record else 0,
            waiting=record.waiting if record else 0,
            preemptions=record.preemptions if record else 0,
            eta_s=None if left is None else left.guess_s,
            eta_low_s=None if left is None else left.low_s,
            eta_high_s=None if left is None else left.high_s,
            replicas=self._replicas,
        )

    def _rates(self) -> tuple[float, float]:
        """Return prompt and generated tokens a second, over the last seconds."""
        record = self._record
        if record is None:
            return 0.0, 0.0
        first = self._samples[0]
        if first is record:
            seconds, prompt, generated = (
                record.t,
                record.prompt_tokens_done,
                record.generated_tokens,
            )
        else:
            seconds = record.t - first.t
            prompt = record.prompt_tokens_done - first.prompt_tokens_done
            generated = record.generated_tokens - first.generated_tokens
        return prompt / max(seconds, 1e-9), generated / max(seconds, 1e-9)

    def _time_left(self, now: float) -> TimeLeft | None:
        record, tally = self._record, self._tally
        if self._phase is not Phase.RUN or record is None or tally is None:
            return None
        first = self._samples[0]
        num_steps = record.step - first.step if first is not record else record.step
        span_s = record.t - first.t if first is not record else record.t
        # Steps are those of all replicas, which take them beside each other.
        num_beside = max(sum(each.is_running for each in self._replicas), 1)
        step_s = num_beside * span_s / max(num_steps, 1)
        return TimeLeft.of(now - self.run_began, step_s, record, tally.lengths, self._speed.spread)

    def _rows_per_s(self) -> float:
        """Return rows a second, over the last seconds if enough of them came back in these."""
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
MIN_PART_S = 0.5  # shorter ones vary by what their steps computed


class SpeedLog:
    """Notes what steps computed by when. Speed is in prompt tokens a second, a step and a new token
    each counted as the usual number of them, so that reading prompts and answering compare."""

    def __init__(self) -> None:
        self._marks: Decimated[tuple[float, float]] = Decimated(NUM_MARKS)

    def note(self, record: StepRecord) -> None:
        """Take note of a step."""
        if self._marks.wants(record.step):
            num_prompt = record.prompt_tokens - record.cached_tokens
            num_new = record.generated_tokens * USUAL_NEW_TOKEN
            done = record.step * USUAL_STEP + num_prompt + num_new
            self._marks.add(record.step, (record.t, done))

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithm of the speed, over equal parts of the run so far;
        0 where there is too little to tell."""
        marks = self._marks.items
        part_s = max(marks[-1][0] / NUM_PARTS, MIN_PART_S) if marks else MIN_PART_S
        # Between two words of replicas nothing is done, as far as is known.
        speeds, began_s, before = [], 0.0, 0.0
        for at_s, done in marks:
            if at_s - began_s >= part_s and done > before:
                speeds.append(log((done - before) / (at_s - began_s)))
                began_s, before = at_s, done
        return float(np.std(speeds)) if len(speeds) >= MIN_PARTS else 0.0
