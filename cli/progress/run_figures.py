"""RunFigures: the numbers of a running job at one moment, and the listener that gathers them."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.cli.progress.speed import SpeedLog
from pagedrun.cli.progress.time_left import TimeLeft
from pagedrun.paged.job.progress import Phase, ShownAnswer, Tally
from pagedrun.paged.report.record.replica_state import ReplicaState, ReplicatedStep
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.text.prompt_renderer import PromptModes
from pagedrun.paged.values.errors import as_flag, spelled

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


class RunWatch:
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
        self._latest: ShownAnswer | None = None

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

    def on_answer(self, answer: ShownAnswer) -> None:
        """Keep it as the latest."""
        self._latest = answer

    def on_tally(self, tally: Tally) -> None:
        """Keep the counts."""
        self._tally = tally

    def on_warning(self, message: str) -> None:
        """Pass it on, its options as flags."""
        self._warn(spelled(message, as_flag))

    @property
    def latest(self) -> ShownAnswer | None:
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
