"""A job that ran undisturbed, against which it is held however else it runs."""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import JobResult, run_job
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.comparable import comparable_bytes
from tests.support.engines import ANY_PREFIX
from tests.support.families import FULL, SLIDING, TINY, Tiny, save_tiny
from tests.support.jsonl import write_jsonl
from tests.support.manifests import as_if_killed
from tests.whole.sampling.mixed_rows import BAD, TEMPLATE, mixed_rows

SOME_PREFIX = RunPolicy(read_once=ANY_PREFIX)
# Whoever fits is let in, so that somebody must give way.
CROWDED = RunPolicy(AdmitAll, read_once=ANY_PREFIX)

LONG_ANSWERS = 24  # tokens: answers leave windows behind, and beams part far from their ends
WINDOW = 20


@dataclass(frozen=True)
class Whole:
    """A job that ran undisturbed, and what it wrote."""

    config: JobConfig
    answers: bytes

    @classmethod
    def of(cls, model: Path, folder: Path, max_tokens: int) -> "Whole":
        """Run rows of every kind; input and output are in `folder`."""
        config = JobConfig(
            input=str(write_jsonl(folder / "rows.jsonl", mixed_rows())),
            output=str(folder / "whole.jsonl"),
            engine=EngineConfig(model=model, dtype="float32", block_size=16),
            chat_template=TEMPLATE,
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            ordered=True,
        )
        assert run(config, SOME_PREFIX).num_failed == len(BAD)
        return cls(config, comparable_bytes(config.output))

    def run(self, folder: Path, policy: RunPolicy = SOME_PREFIX, **engine: Any) -> JobResult:
        """Run the job another way; what it writes must be the same."""
        settings = replace(self.config.engine, **engine)
        config = replace(self.config, output=str(folder / "out.jsonl"), engine=settings)
        return self.compared(config, policy)

    def compared(self, config: JobConfig, policy: RunPolicy = SOME_PREFIX) -> JobResult:
        """Run a job; what it writes must be the same."""
        result = run(config, policy)
        found = comparable_bytes(config.output).splitlines()
        wanted = self.answers.splitlines()
        assert [json.loads(line)["index"] for line in found] == [*range(len(wanted))]
        for one, other in zip(found, wanted, strict=True):
            assert one == other
        return result

    def died_at(self, num_bytes: int, folder: Path) -> JobConfig:
        """Return the job as a run leaves it that dies when so many bytes are written."""
        output = folder / "out.jsonl"
        output.write_bytes(Path(self.config.output).read_bytes()[:num_bytes])
        manifest = Path(f"{output}.run.json")
        manifest.write_bytes(Path(f"{self.config.output}.run.json").read_bytes())
        as_if_killed(manifest)
        return replace(self.config, output=str(output), resume=True)


def run(config: JobConfig, policy: RunPolicy) -> JobResult:
    return run_job(config, None, partial(LocalModel, policy=policy))


def windowed(kind: str, folder: Path, make_model: MakeModel) -> Path:
    """Return a model of a kind: layers with windows beside others, or windows in all of them."""
    if kind == "all":
        return make_model("mistral", "all-windows", sliding_window=WINDOW)
    gemma = {**TINY["gemma3"].fields, "layer_types": [SLIDING, FULL]}
    fields = {**gemma, "num_hidden_layers": 2, "sliding_window": WINDOW}
    save_tiny(Tiny("Gemma3TextConfig", fields), folder)
    return folder
