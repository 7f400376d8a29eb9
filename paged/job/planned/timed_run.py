"""Timings of runs on this machine, kept in the user's cache for later plans."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.paged.files.atomic import replace_json
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.job.output.manifest import config_digest
from pagedrun.paged.metrics.report_sections import JobReport
from pagedrun.paged.metrics.run_statistics import describe_hardware
from pagedrun.paged.metrics.step_costs import StepCosts
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError

MIN_RUN_SECONDS = 1.0  # shorter runs are mostly start-up
FOLDER = "times"
MOST_SECONDS = 1e9
# Settings that determine step times, beside the model and the machine.
_SETTINGS = ("dtype", "quantization", "kv_cache_dtype", "kernel_set", "model_impl")


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Timings in seconds: `load_s` of loading the model, `compile_s` of its kernels, and step
    costs.

    Compiled kernels are read from disk the next time.
    """

    load_s: float
    compile_s: float
    step_s: float
    prompt_token_s: float
    generated_token_s: float
    usual_token_s: float

    @property
    def costs(self) -> StepCosts:
        """Step costs."""
        return {
            "step_s": self.step_s,
            "prompt_token_s": self.prompt_token_s,
            "generated_token_s": self.generated_token_s,
            "usual_token_s": self.usual_token_s,
        }

    @classmethod
    def read(cls, config: EngineConfig, device: str) -> "TimedRun | None":
        """Return the last run with such settings on this machine, None without one."""
        try:
            path = _path(config, device)
            if path is None:
                return None
            found = JsonObject.parse(str(path), path.read_bytes())
            return cls(*(found.number(each.name, 0.0, MOST_SECONDS) for each in fields(cls)))
        except (OSError, ModelError):
            return None

    def keep(self, config: EngineConfig, device: str) -> None:
        """Save the timings for `read`. Raises `OSError`."""
        path = _path(config, device)
        if path is not None:
            replace_json(path, asdict(self))


def save_timings(config: EngineConfig, report: JobReport) -> None:
    """Save the timings of a run unless it was too short; failures are ignored.

    No text or name of the file is saved: the key is a digest of the model's shape, the processor
    and the settings.
    """
    costs, times = report.get("step_costs"), report["time"]
    if costs is None or times["run_s"] < MIN_RUN_SECONDS:
        return
    with suppress(OSError):
        timed = TimedRun(times["load_s"], times.get("compile_s", 0.0), **costs)
        timed.keep(config, report["hardware"]["device"])


def _path(config: EngineConfig, device: str) -> Path | None:
    folder = private_folder(FOLDER)
    if folder is None:
        return None
    hardware = describe_hardware(device)
    machine = (device, hardware["processor"], hardware["threads"])
    settings = [str(getattr(config, name)) for name in _SETTINGS]
    known = [config_digest(config.model), *machine, *settings]
    return folder / f"{hashlib.sha256(json.dumps(known).encode()).hexdigest()}.json"
