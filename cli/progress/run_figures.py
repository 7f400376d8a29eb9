"""RunFigures: the numbers of a running job at one moment, and the listener that gathers them."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.paged.job.listener import Phase
from pagedrun.paged.job.tally import Tally
from pagedrun.paged.report.record.timeline import StepRecord

RATE_WINDOW_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a progress display shows. Times are seconds; rates are those of the last seconds.

    `eta_s` is None while no row has come back from the engine. `pool_use` and `hit_rate` are
    fractions.
    """

    phase: Phase
    elapsed_s: float
    rows_done: int
    rows_total: int
    rows_failed: int
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    pool_use: float
    hit_rate: float
    running: int
    waiting: int
    preemptions: int
    eta_s: float | None


class RunWatch:
    """A `JobListener` that keeps the latest of everything; any thread may read `figures`.

    `warn` and `enter` are called, in the job's thread, for a warning and for a new phase.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        enter: Callable[[Phase], None] = lambda phase: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn = warn
        self._enter = enter
        self._clock = clock
        self._began = clock()
        self._phase = Phase.READ
        self._run_began = self._began
        self._done_before_run = 0
        self._record: StepRecord | None = None
        self._tally: Tally | None = None
        self._samples: deque[StepRecord] = deque()

    def on_phase(self, phase: Phase) -> None:
        """Note the phase."""
        self._phase = phase
        if phase is Phase.RUN:
            self._run_began = self._clock()
        self._enter(phase)

    def on_step(self, record: StepRecord) -> None:
        """Keep the record, and those of the last seconds for the rates."""
        if self._record is None and self._tally is not None:
            self._done_before_run = self._tally.failed  # refused rows say nothing about speed
        samples = self._samples
        samples.append(record)
        while len(samples) > 2 and record.t - samples[0].t > RATE_WINDOW_SECONDS:
            samples.popleft()
        self._record = record

    def on_tally(self, tally: Tally) -> None:
        """Keep the counts."""
        self._tally = tally

    def on_warning(self, message: str) -> None:
        """Pass it on."""
        self._warn(message)

    def figures(self) -> RunFigures:
        """Return the numbers of this moment."""
        now, record, tally = self._clock(), self._record, self._tally
        done = tally.ok + tally.failed if tally is not None else 0
        total = tally.total if tally is not None else record.total if record is not None else 0
        prompt_rate, generated_rate = self._rates()
        return RunFigures(
            phase=self._phase,
            elapsed_s=now - self._began,
            rows_done=done,
            rows_total=total,
            rows_failed=tally.failed if tally is not None else 0,
            prompt_tokens_per_s=prompt_rate,
            generated_tokens_per_s=generated_rate,
            pool_use=record.blocks_used / max(record.blocks_total, 1) if record else 0.0,
            hit_rate=record.cached_tokens / max(record.prompt_tokens, 1) if record else 0.0,
            running=record.running if record else 0,
            waiting=record.waiting if record else 0,
            preemptions=record.preemptions if record else 0,
            eta_s=self._eta(now, done, total),
        )

    def _rates(self) -> tuple[float, float]:
        """Return prompt and generated tokens a second, over the last seconds."""
        record = self._record
        if record is None:
            return 0.0, 0.0
        first = self._samples[0]
        if first is record:
            seconds, prompt, generated = record.t, record.prompt_tokens, record.generated_tokens
        else:
            seconds = record.t - first.t
            prompt = record.prompt_tokens - first.prompt_tokens
            generated = record.generated_tokens - first.generated_tokens
        return prompt / max(seconds, 1e-9), generated / max(seconds, 1e-9)

    def _eta(self, now: float, done: int, total: int) -> float | None:
        answered = done - self._done_before_run
        if self._phase is not Phase.RUN or answered <= 0:
            return None
        return (total - done) * (now - self._run_began) / answered
