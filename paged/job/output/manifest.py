"""Manifest: what was run, on what, and how far it came; `OUT.run.json`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pagedrun._version import __version__
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.values.errors import ModelError, UsageError
from pagedrun.paged.values.option_names import first_option, option

DEFAULT_ORIGIN = "default"
MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, as the format has it
# Parameters that no answer depends on.
_NOT_DECIDING = frozenset(
    {
        "model",
        "tokenizer",
        "block_size",
        "num_blocks",
        "kv_cache_memory_bytes",
        "gpu_memory_utilization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "prefix_caching",
        "prefix_once",
        "preemption_mode",
        "swap_space_bytes",
        "enforce_eager",
        "kernel_set",  # what it comes to is under "arithmetic"
        "prefix_store",
        "prefix_store_bytes",
        "overwrite",
        "resume",
        "retry_errors",
        "ordered",
        "strict",
    }
)


class JobStatus(StrEnum):
    """How far a job came."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What does not change from the start of a job to its end; `to_json` adds what does not."""

    config: JobConfig
    input: InputDigest
    max_model_len: int
    config_json_sha256: str
    files_sha256: str
    first_window_sha256: str
    started: datetime
    arithmetic: Mapping[str, Any]

    @classmethod
    def start(
        cls,
        config: JobConfig,
        source: InputDigest,
        max_model_len: int,
        arithmetic: Mapping[str, Any],
    ) -> "Manifest":
        """Return the manifest of a job that begins now; `ModelError` if a model file is gone."""
        path = config.engine.model / "config.json"
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            files = files_digest(config.engine.model, config.tokenizer or config.engine.model)
        except OSError as error:
            name = error.filename or path
            raise ModelError(f"{name} cannot be read ({error.strerror})") from error
        now = datetime.now(UTC)
        return cls(config, source, max_model_len, digest, files, source.sha256, now, arithmetic)

    def check_same_job(self, path: Path) -> None:
        """Raise `UsageError` unless the manifest at `path` is that of a run of the same job.

        Another batch size, pool or order of the output is the same job: no answer depends on them.
        """
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            new = json.loads(json.dumps(self.to_json(JobStatus.RUNNING, {})))
            differing = _differing(_identity(old), _identity(new))
        except OSError as error:
            raise UsageError(
                f"{option('resume')}: {path} cannot be read ({error.strerror}), so it is unknown "
                f"whether the output is of the same job; pass {option('overwrite')} in place of "
                f"{option('resume')}"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{option('resume')}: {path} is not a manifest of this version; pass "
                f"{option('overwrite')} in place of {option('resume')}"
            ) from error
        if _arithmetic(old) != _arithmetic(new):
            raise UsageError(_other_arithmetic(_arithmetic(old), self.arithmetic))
        if differing:
            raise UsageError(
                f"{option('resume')}: the output was begun with another "
                f"{', another '.join(differing)}; run it with the same, or pass "
                f"{option('overwrite')} in place of {option('resume')}"
            )

    def to_json(self, status: JobStatus, rows: dict[str, int]) -> dict[str, Any]:
        """Return the object to write, with the counts of `rows`."""
        ended = None if status is JobStatus.RUNNING else _timestamp(datetime.now(UTC))
        return {
            "version": __version__,
            "status": status.value,
            "started": _timestamp(self.started),
            "ended": ended,
            "model": {
                "path": str(self.config.engine.model),
                "config_json_sha256": self.config_json_sha256,
                "files_sha256": self.files_sha256,
            },
            "input": {
                "path": self.config.input,
                **asdict(self.input),
                "first_window_sha256": self.first_window_sha256,
            },
            "output": self.config.output,
            "recipe": self.config.recipe,
            "arithmetic": dict(self.arithmetic),
            "parameters": self._parameters(),
            "rows": rows,
        }

    def _parameters(self) -> dict[str, dict[str, Any]]:
        """Return each setting's value in effect and its origin; of prompt text, a digest."""
        config = self.config
        template = config.prompts.template
        values: dict[str, Any] = {
            **asdict(config.sampling),
            **asdict(config.engine),
            "max_model_len": self.max_model_len,
            "tokenizer": config.tokenizer,
            "chat_template": text_digest(config.chat_template),
            "system": text_digest(config.prompts.system),
            "prompt_template": text_digest(template.source if template else None),
            "prompt_field": config.prompts.field,
            "limit": config.limit,
            "overwrite": config.overwrite,
            "resume": config.resume,
            "retry_errors": config.retry_errors,
            "ordered": config.ordered,
            "on_overlong": config.on_overlong.value,
            "strict": config.strict,
        }
        return {
            name: {
                "value": str(value) if isinstance(value, Path) else value,
                "origin": config.origins.get(name, DEFAULT_ORIGIN),
            }
            for name, value in values.items()
        }


def _identity(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the answers, by the name that a user knows it by."""
    parameters = {
        option(name): setting["value"]
        for name, setting in manifest["parameters"].items()
        if name not in _NOT_DECIDING
    }
    return {
        "input": manifest["input"]["first_window_sha256"],
        "model": manifest["model"]["config_json_sha256"],
        "set of weights or tokenizer": manifest["model"]["files_sha256"],
        **parameters,
    }


def _arithmetic(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what the last bits of the answers depend on; manifests before 0.2 do not say."""
    return dict(manifest.get("arithmetic") or {})


def _other_arithmetic(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the sentence about rows that this machine would compute in another way."""
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    differences = ", ".join(
        f"{name.replace('_', ' ')} was {old.get(name)} and is {new.get(name)}" for name in names
    )
    way_out = f"pass {option('overwrite')} in place of {option('resume')} to compute all rows here"
    if old.get("kernel_set") != new.get("kernel_set") and old.get("kernel_set"):
        kernel_set = f"{option('kernel_set')} {old['kernel_set']}"
        way_out = f"pass {kernel_set} where the processor has it, or {way_out}"
    return (
        f"{option('resume')}: the rows that are there and those to come would not be computed "
        f"alike: {differences}; {way_out}"
    )


def _differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    names = [name for name in new if old.get(name) != new[name]]
    return [
        name if first_option(name) is None else f"{name} ({old.get(name)}, now {new[name]})"
        for name in names
    ]


def files_digest(model: Path, tokenizer: Path) -> str:
    """Return a digest of tokenizer files and of weights, of which headers and sizes must do."""
    digest = hashlib.sha256()
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            digest.update(file.read(min(size, MAX_HEADER_BYTES)))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        path = tokenizer / name
        if path.is_file():
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def text_digest(text: str | None) -> dict[str, Any] | None:
    """Return what tells two texts apart without repeating either."""
    if text is None:
        return None
    return {
        "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        "chars": len(text),
    }


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
