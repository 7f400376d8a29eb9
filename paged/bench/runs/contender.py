"""Contender: one of those that run the same rows in turns, and what pagedrun is as one."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch

from pagedrun.paged.bench.runs.device_profile import (
    DeviceProfile,
    DeviceProfileFigures,
    SpanRecorder,
)
from pagedrun.paged.bench.runs.figures import RunFigures, RunRecord, measure
from pagedrun.paged.bench.runs.model import BenchModel
from pagedrun.paged.bench.runs.op_timer import OpTimer
from pagedrun.paged.bench.runs.step_log import StepLog
from pagedrun.paged.bench.runs.workload import Workload
from pagedrun.paged.bench.spread import Spread
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.values.request import Request

Tokens = list[tuple[int, ...]]


class ComparedRun(Protocol):
    """What is compared: seconds, and the steps in which `decode_rows` rows got a token each."""

    @property
    def total_s(self) -> float:
        """From prompt token ids to the last answer."""
        ...

    @property
    def prefill_s(self) -> float:
        """Seconds of the steps that worked on prompts."""
        ...

    @property
    def decode_rows(self) -> int:
        """Rows in such a step."""
        ...

    @property
    def decode_step(self) -> Spread | None:
        """Seconds of such a step, None if there was none."""
        ...

    def to_dict(self) -> RunRecord:
        """Return everything that was measured, as a result states it."""
        ...


class Contender(Protocol):
    """Something that answers requests and can be measured doing so."""

    @property
    def name(self) -> str:
        """What to call it beside the others."""
        ...

    def warm_up(self, workload: Workload) -> None:
        """Do once what only the first run of a process has to do, for rows like these."""
        ...

    def run(self, requests: Seq[Request]) -> tuple[ComparedRun, Tokens]:
        """Answer the requests; return what was measured and each one's generated tokens."""
        ...


class Peer(Protocol):
    """Another program that can run the same rows."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def check(self, workload: Workload) -> None:
        """Raise `UsageError` for rows that it cannot be measured with."""
        ...

    def contender(self, model: BenchModel, dtype: torch.dtype, device: torch.device) -> Contender:
        """Return the program with the model loaded, or with the same random weights."""
        ...


@dataclass(frozen=True, slots=True)
class EngineContender:
    """An engine with its settings; `timer` is the one whose kernels it has."""

    name: str
    engine: Engine
    timer: OpTimer

    def warm_up(self, workload: Workload) -> None:
        """Compile the kernels, and touch each of them."""
        self.engine.warm_up()
        self.run(workload.warm_up().requests(self.engine.loaded.config.vocab_size))

    def run(self, requests: Seq[Request]) -> tuple[RunFigures, Tokens]:
        """Run the requests; raises `UsageError` if one of them cannot be run."""
        figures, answers = measure(self.engine, requests, self.timer)
        return figures, [answer.outputs[0].token_ids for answer in answers]

    def profile(self, requests: Seq[Request]) -> DeviceProfileFigures | None:
        """Run the requests once more under torch's profiler; return what the device did.

        None where the device is the host, whose ops are timed in every run.
        """
        device = self.engine.loaded.device
        if not device.is_asynchronous:
            return None
        log = StepLog(self.timer, async_scheduling=device.async_scheduling)
        with SpanRecorder(is_gpu=device.has_own_memory) as recorder:
            began = perf_counter()
            for _ in self.engine.start(requests, log):
                pass
            seconds = perf_counter() - began
        return DeviceProfile(seconds, recorder.spans, log.steps).to_dict()
