"""Calibration of step times on this machine, by a few seconds of synthetic rows."""

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.planned.timed_run import TimedRun
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.metrics.step_costs import StepFit
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

LIMIT_S = 10.0
MIN_STEPS = 4  # other steps follow from the usual proportions
LONGEST_PROMPT = 128
NUM_NEW = 16
# A round has twice the rows of the previous one, and may have longer prompts.
GROWTH = 4.0


class _TimeIsUp(Exception):
    """Ends a round between two steps."""


def calibrate(
    config: EngineConfig, tokenizer: Path, listener: JobListener, limit_s: float = LIMIT_S
) -> TimedRun | None:
    """Load the model, time it for at most `limit_s` seconds and save the result for plans.

    Loading and first compilation are not counted. Rows are random token ids, in rounds of 1, 2, 4,
    … rows up to `max_num_seqs`: nothing is known of the model before the first, and a round that
    would not end in time is not started. A running step is finished. Returns None if there were too
    few steps. `tokenizer` is a folder. Raises `ModelError` for an unusable model, `UsageError` for
    an unusable device.
    """
    listener.on_phase(Phase.LOAD)
    began = time.perf_counter()
    engine = LocalModel(config, tokenizer, None).load_engine()
    loaded = time.perf_counter()
    engine.warm_up(lambda: listener.on_phase(Phase.COMPILE))
    ready = time.perf_counter()
    listener.on_phase(Phase.CALIBRATE)
    costs = _timed_steps(engine, limit_s).costs_after(MIN_STEPS)
    if costs is None:
        return None
    timed = TimedRun(loaded - began, ready - loaded, **costs)
    with suppress(OSError):
        timed.keep(config, engine.loaded.device.torch_device.type)
    return timed


def _timed_steps(engine: Engine, limit_s: float) -> StepFit:
    """Run rounds until the next would not end in time; return the times of their steps."""
    fit, ends_at = StepFit(), time.monotonic() + limit_s

    def on_step(record: StepRecord) -> None:
        if time.monotonic() >= ends_at:
            raise _TimeIsUp

    for requests in _rounds(engine):
        began = time.monotonic()
        run = engine.start(requests, hooks=RunHooks(on_step))
        try:
            for _ in run:
                pass
        except _TimeIsUp:
            break
        finally:
            run.close()
            fit.include(run.statistics.step_fit)
        now = time.monotonic()
        if now + GROWTH * (now - began) > ends_at:
            break
    return fit


def _rounds(engine: Engine) -> Iterator[list[Request]]:
    draw, vocab_size = random.Random(0), engine.loaded.config.vocab_size
    num_new = max(min(NUM_NEW, engine.max_model_len - 1), 1)
    longest = max(min(LONGEST_PROMPT, engine.max_model_len - num_new), 1)
    params = SamplingParams(max_tokens=num_new, ignore_eos=True)
    num_rows = 1
    while True:
        length = min(16 * num_rows, longest)
        yield [
            Request(index, tuple(draw.randrange(vocab_size) for _ in range(length)), params)
            for index in range(num_rows)
        ]
        if num_rows == engine.config.max_num_seqs:
            return
        num_rows = min(2 * num_rows, engine.config.max_num_seqs)
