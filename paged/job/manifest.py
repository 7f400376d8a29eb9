"""Manifest: what was run, on what, and how far it came; `OUT.run.json`."""

import hashlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pagedrun._version import __version__
from pagedrun.paged.errors import ModelError
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.input_digest import InputDigest

DEFAULT_ORIGIN = "default"


class JobStatus(StrEnum):
    """How far a job came."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What stays the same from the start of a job to its end; `to_json` adds what does not."""

    config: JobConfig
    input: InputDigest
    max_model_len: int
    config_json_sha256: str
    started: datetime

    @classmethod
    def start(cls, config: JobConfig, source: InputDigest, max_model_len: int) -> "Manifest":
        """Return the manifest of a job that begins now; `ModelError` if config.json is gone."""
        path = config.engine.model / "config.json"
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror})") from error
        return cls(config, source, max_model_len, digest, datetime.now(UTC))

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
            },
            "input": {"path": self.config.input, **asdict(self.input)},
            "output": self.config.output,
            "parameters": self._parameters(),
            "rows": rows,
        }

    def _parameters(self) -> dict[str, dict[str, Any]]:
        """Return each setting's value in effect and its origin. Prompt text stands as a digest."""
        config = self.config
        template = config.prompts.template
        values: dict[str, Any] = {
            **asdict(config.sampling),
            **asdict(config.engine),
            "max_model_len": self.max_model_len,
            "tokenizer": config.tokenizer,
            "chat_template": _text_digest(config.chat_template),
            "system": _text_digest(config.prompts.system),
            "prompt_template": _text_digest(template.source if template else None),
            "prompt_field": config.prompts.field,
            "limit": config.limit,
            "overwrite": config.overwrite,
            "ordered": config.ordered,
        }
        return {
            name: {
                "value": str(value) if isinstance(value, Path) else value,
                "origin": config.origins.get(name, DEFAULT_ORIGIN),
            }
            for name, value in values.items()
        }


def _text_digest(text: str | None) -> dict[str, Any] | None:
    """Return what tells two texts apart without repeating either."""
    if text is None:
        return None
    return {
        "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        "chars": len(text),
    }


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
