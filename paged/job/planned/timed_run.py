"""Timings of runs on this machine, kept in the user's cache for later plans.

They are those of the last run with the same settings, or of a calibration: a few seconds of
synthetic rows.
"""

import hashlib
import json
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.paged.files.atomic import replace_json
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.job.output.manifest import config_digest
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.metrics.report_sections import JobReport, section_of
from pagedrun.paged.metrics.run_statistics import describe_hardware
from pagedrun.paged.metrics.step_costs import StepCosts, StepFit
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pagedrun.paged.execution.engine import Engine

MIN_RUN_SECONDS = 1.0  # shorter runs are mostly start-up
FOLDER = "times"
MOST_SECONDS = 1e9
# Settings that determine step times, beside the model and the machine.
_SETTINGS = (
    *("dtype", "quantization", "kv_cache_dtype", "kernel_set", "activations", "model_impl"),
)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Timings in seconds: `load_s` of loading the model, `compile_s` of its kernels, and `costs`
    of steps.

    Compiled kernels are read from disk the next time.
    """

    load_s: float
    compile_s: float
    costs: StepCosts

    @classmethod
    def read(
        cls, config: EngineConfig, device: str, *, of_texts: bool = False
    ) -> "TimedRun | None":
        """Return the last run with such settings on this machine, None without one.

        of_texts: a run without answers.
        """
        try:
            path = _path(config, device, of_texts=of_texts)
            if path is None:
                return None
            found = JsonObject.parse(str(path), path.read_bytes())

            def seconds(name: str) -> float:
                return found.number(name, 0.0, MOST_SECONDS)

            return cls(seconds("load_s"), seconds("compile_s"), section_of(StepCosts, seconds))
        except (OSError, ModelError):
            return None

    def keep(self, config: EngineConfig, device: str, *, of_texts: bool = False) -> None:
        """Save the timings for `read`. Raises `OSError`."""
        path = _path(config, device, of_texts=of_texts)
        if path is not None:
            replace_json(path, {"load_s": self.load_s, "compile_s": self.compile_s, **self.costs})


def save_timings(config: EngineConfig, report: JobReport) -> None:
    """Save the timings of a run unless it was too short; failures are ignored.

    No text or name of the file is saved: the key is a digest of the model's shape, the processor
    and the settings.
    """
    costs, times = report.get("step_costs"), report["time"]
    if costs is None or times["run_s"] < MIN_RUN_SECONDS:
        return
    with suppress(OSError):
        timed = TimedRun(times["load_s"], times.get("compile_s", 0.0), costs)
        timed.keep(config, report["hardware"]["device"], of_texts="pooling" in report)


def _path(config: EngineConfig, device: str, *, of_texts: bool) -> Path | None:
    folder = private_folder(FOLDER)
    if folder is None:
        return None
    hardware = describe_hardware(device)
    machine = (device, hardware["processor"], hardware["threads"])
    settings = [str(getattr(config, name)) for name in _SETTINGS]
    known = [config_digest(config.model), *machine, *settings, *["texts"] * of_texts]
    return folder / f"{hashlib.sha256(json.dumps(known).encode()).hexdigest()}.json"


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
    from pagedrun.paged.job.model import LocalModel  # imports torch

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
    timed = TimedRun(loaded - began, ready - loaded, costs)
    with suppress(OSError):
        timed.keep(config, engine.loaded.device.torch_device.type)
    return timed


def _timed_steps(engine: "Engine", limit_s: float) -> StepFit:
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


def _rounds(engine: "Engine") -> Iterator[list[Request]]:
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
