"""Measured runs of an engine, and the interface of programs that it is compared with.

A contender answers the same rows in turns with the others. The engine's run is recorded step by
step; the steady state is the steps in which the largest batch only decodes. On a GPU one more
run under torch's profiler attributes the time to kernels, those of replayed graphs included;
since the profiler slows the host, the seconds of this run are not compared.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, Protocol, TypedDict

import torch
from torch.profiler import ProfilerActivity, profile

from pagedrun.kernels.partition import NEVER
from pagedrun.paged.bench.op_timer import OpSeconds, OpTimer, attention_seconds
from pagedrun.paged.bench.result import Neighbours, Spread
from pagedrun.paged.bench.workload import BenchModel, Workload
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.metrics.timeline import RunHooks, StepRecord
from pagedrun.paged.planning.memory import peak_resident_bytes
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, Request

Tokens = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """Seconds, tokens and bytes of one run, from prompt token ids to the last token.

    `prefill_s` is the time of the steps with prompt tokens. `decode_step` has the seconds of the
    steps in which `decode_rows` rows, the largest batch of the run, each got a token and nothing
    else was done; None without such a step. `peak_memory` is the peak of the process so far,
    earlier runs included. `others_busy` is the number of CPUs that other processes kept busy.
    """

    COMPUTED: ClassVar = ("rows_per_s", "prompt_tokens_per_s", "generated_tokens_per_s")

    total_s: float
    prefill_s: float
    rows: int
    prompt_tokens: int
    generated_tokens: int
    decode_rows: int
    decode_step: Spread | None
    peak_memory: int
    others_busy: float | None

    @property
    def rows_per_s(self) -> float:
        """Rows per second of the run."""
        return self.rows / self.total_s

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens per second of the run."""
        return self.prompt_tokens / self.total_s

    @property
    def generated_tokens_per_s(self) -> float:
        """Generated tokens per second of the run."""
        return self.generated_tokens / self.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcessRun(ComparedRun):
    """Figures of a run in a process of its own, whose memory `peak_memory` is, 0 if unknown."""


class Contender(Protocol):
    """Program that answers requests and can be measured doing so."""

    @property
    def name(self) -> str:
        """Name of the contender."""
        ...

    def warm_up(self, workload: Workload) -> None:
        """Do once the work of the first run of a process, for rows like these."""
        ...

    def run(self, requests: Seq[Request]) -> tuple[ComparedRun, Tokens]:
        """Answer the requests; return the measurements and the generated tokens of each request."""
        ...


class Peer(Contender, Protocol):
    """Another program that can run the same rows."""

    @property
    def version(self) -> str | None:
        """Version of the program, None if it is unknown."""
        ...

    def check(self, model: BenchModel, workload: Workload) -> None:
        """Raise `UsageError` for a model or rows that it cannot be measured with."""
        ...

    def load(self, model: BenchModel, dtype: torch.dtype, device: torch.device) -> None:
        """Load the model, or make the same random weights; before anything is run."""
        ...

    def close(self) -> None:
        """End its process and remove its files, if it has any."""
        ...


class KernelTime(TypedDict):
    """Number and total seconds of the kernels of one name."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """Activity of the GPU and the host in a separate run under the profiler.

    Of the `steps`, `graph_steps` were replayed, `prompt_steps` had prompt tokens, and `eager_steps`
    only decoded, kernel by kernel, including those that were captured. `device_busy` is the share
    of `seconds` in which at least one kernel ran, `host_s_per_step` the time in which the host did
    not wait for the device.
    """

    COMPUTED: ClassVar = ("device_busy", "host_s_per_step")

    seconds: float
    steps: int
    graph_steps: int
    prompt_steps: int
    eager_steps: int
    device_busy_s: float
    host_waited_s: float
    graph_launches: int
    kernel_launches: int
    kernels: list[KernelTime]

    @classmethod
    def of(cls, seconds: float, spans: "Seq[Span]", steps: "Seq[LoggedStep]") -> "DeviceProfile":
        """Return the profile of a run of `seconds`, with these spans and steps."""
        device = [span for span in spans if span.on_device]
        host = [span for span in spans if not span.on_device]
        # Before the first tokens there is a step without any record.
        known = [step for step in steps if step.generated_tokens or step.op_seconds]
        replayed = sum(not step.op_seconds for step in known)
        prompts = sum(not step.only_decodes for step in known)
        return cls(
            seconds=seconds,
            steps=len(known),
            graph_steps=replayed,
            prompt_steps=prompts,
            eager_steps=len(known) - replayed - prompts,
            device_busy_s=covered(device),
            host_waited_s=covered(span for span in host if span.name in _WAITS),
            graph_launches=sum(span.name in _GRAPHS for span in host),
            kernel_launches=sum(_LAUNCH in span.name for span in host),
            kernels=by_time(device),
        )

    @property
    def device_busy(self) -> float:
        """Share of the seconds in which the GPU was busy."""
        return self.device_busy_s / self.seconds

    @property
    def host_s_per_step(self) -> float:
        """Seconds of a step in which the host did not wait."""
        return (self.seconds - self.host_waited_s) / max(self.steps, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures(ComparedRun):
    """Figures of a run of the engine.

    `decode_s` is the time of the steps without prompt tokens, `decode_attention` that of attention
    in the steps of `decode_step`. `ops` and `decode_ops` are seconds by operation, of the run and
    of those steps; empty on a GPU.
    """

    decode_s: float
    cached_tokens: int
    decode_attention: Spread | None
    hit_rate: float
    peak_blocks: int
    block_size: int
    pool_bytes: int
    preemptions: int
    ops: OpSeconds
    decode_ops: OpSeconds


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

    def profile(self, requests: Seq[Request]) -> DeviceProfile | None:
        """Run the requests once more under torch's profiler; return what the device did.

        None where the device is the host, whose ops are timed in every run.
        """
        device = self.engine.loaded.device
        if not device.is_asynchronous:
            return None
        log = StepLog(self.timer, async_scheduling=device.async_scheduling)
        with SpanRecorder(is_gpu=device.has_own_memory) as recorder:
            began = perf_counter()
            for _ in self.engine.start(requests, hooks=RunHooks(log)):
                pass
            seconds = perf_counter() - began
        return DeviceProfile.of(seconds, recorder.spans, log.steps)


def measure(
    engine: Engine, requests: Seq[Request], timer: OpTimer
) -> tuple[RunFigures, list[Completion]]:
    """Run the requests; return the measurements, and the answers in the requests' order.

    `timer` is the one whose kernels the engine has. Raises `UsageError` if a row cannot be run.
    """
    before = timer.snapshot()
    neighbours = Neighbours()
    began = perf_counter()
    log = StepLog(timer, async_scheduling=engine.loaded.device.async_scheduling)
    run = engine.start(requests, hooks=RunHooks(log))
    answers = sorted(run, key=lambda each: each.request.index)
    total_s = perf_counter() - began
    others_busy = neighbours.cpus_busy()
    for answer in answers:
        if answer.error is not None:
            raise UsageError(f"row {answer.request.index} cannot be run: {answer.error.marked}")
    report = run.report()
    tokens, kv = report["tokens"], report["kv"]
    decode_steps = log.decode_steps
    is_timed = not engine.loaded.device.is_asynchronous
    decode_s = sum(step.seconds for step in log.steps if step.only_decodes)
    figures = RunFigures(
        total_s=total_s,
        prefill_s=sum(step.seconds for step in log.steps) - decode_s,
        decode_s=decode_s,
        rows=len(answers),
        prompt_tokens=tokens["prompt"],
        cached_tokens=tokens["cached"],
        generated_tokens=tokens["generated"],
        decode_rows=decode_steps[0].generated_tokens if decode_steps else 0,
        decode_step=Spread.of(step.seconds for step in decode_steps),
        decode_attention=Spread.of(
            attention_seconds(step.op_seconds) for step in decode_steps if is_timed
        ),
        hit_rate=report["prefix"]["hit_rate"],
        peak_blocks=kv["peak_blocks"],
        block_size=kv["block_size"],
        pool_bytes=kv["pool_bytes"],
        preemptions=report["preemptions"]["swap"] + report["preemptions"]["recompute"],
        peak_memory=peak_resident_bytes(),
        others_busy=others_busy,
        ops=timer.since(before) if is_timed else {},
        decode_ops=_sum(step.op_seconds for step in decode_steps if is_timed),
    )
    return figures, answers


def _sum(each_step: Iterable[OpSeconds]) -> OpSeconds:
    total: dict[str, float] = {}
    for step in each_step:
        for name, seconds in step.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


PREFILL = "prefill_attention"


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step. `seconds` reaches from the end of the step before, so that steps add up."""

    seconds: float
    generated_tokens: int
    op_seconds: OpSeconds

    @property
    def only_decodes(self) -> bool:
        """True if the step computed no prompt token."""
        return PREFILL not in self.op_seconds


class StepLog:
    """Takes the records of a run as its `on_step`; `steps` holds what they say.

    With `async_scheduling` a step's tokens count one step later than it is launched, and its ops
    called.
    """

    def __init__(self, timer: OpTimer, *, async_scheduling: bool = False) -> None:
        self.steps: list[LoggedStep] = []
        self._timer = timer
        self._launched: deque[OpSeconds] = deque([{}] if async_scheduling else [])
        self._at = perf_counter()
        self._generated_tokens = 0
        self._snapshot = timer.snapshot()

    def __call__(self, record: StepRecord) -> None:
        """Note one step."""
        now = perf_counter()
        self._launched.append(self._timer.since(self._snapshot))
        self.steps.append(
            LoggedStep(
                now - self._at,
                record.generated_tokens - self._generated_tokens,
                self._launched.popleft(),
            )
        )
        self._generated_tokens = record.generated_tokens
        self._snapshot = self._timer.snapshot()
        self._at = perf_counter()  # what is done here is part of no step

    @property
    def decode_steps(self) -> list[LoggedStep]:
        """Steps that only decode, of the largest batch that did: the steady state."""
        steps = [step for step in self.steps if step.only_decodes]
        most = max((step.generated_tokens for step in steps), default=0)
        return [step for step in steps if step.generated_tokens == most]


MOST_KERNELS = 25  # that are named; the others are added up
OTHERS = "other kernels"
# Calls of the driver in which the host waits, and those in which it starts something.
_WAITS = frozenset(
    f"{api}{what}Synchronize"
    for api in ("cuda", "hip", "cu")
    for what in ("Event", "Stream", "Device", "Ctx")
)
_GRAPHS = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
_LAUNCH = "LaunchKernel"  # in the name of every call that starts one kernel


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `start` to `end`, in seconds, on the device or on the host."""

    name: str
    start: float
    end: float
    on_device: bool


def covered(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of the spans was going on."""
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda each: each.start):
        total += max(span.end - max(span.start, reached), 0.0)
        reached = max(reached, span.end)
    return total


def by_time(spans: Iterable[Span]) -> list[KernelTime]:
    """Return count and seconds of the kernels of each name, the slowest first."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for span in spans:
        seconds[span.name].append(span.end - span.start)
    slowest = sorted(seconds, key=lambda name: -sum(seconds[name]))
    times: list[KernelTime] = [
        {"name": name, "count": len(seconds[name]), "seconds": sum(seconds[name])}
        for name in slowest[:MOST_KERNELS]
    ]
    rest = [each for name in slowest[MOST_KERNELS:] for each in seconds[name]]
    return [*times, {"name": OTHERS, "count": len(rest), "seconds": sum(rest)}] if rest else times


class SpanRecorder:
    """A context in which the spans of a GPU and of its driver are recorded; `spans` has them.

    Without a GPU the ops on the CPU are recorded, as if on a device: to try it.
    """

    def __init__(self, *, is_gpu: bool) -> None:
        self.spans: list[Span] = []
        self._is_gpu = is_gpu
        activity = ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU
        self._profiler: Any = profile(activities=[activity])

    def __enter__(self) -> "SpanRecorder":
        self._profiler.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._profiler.__exit__(*failure)
        for event in self._profiler.events() or ():
            on_device = not self._is_gpu or event.device_type.name != "CPU"
            if not event.is_user_annotation:
                begun, ended = event.time_range.start / 1e6, event.time_range.end / 1e6
                self.spans.append(Span(event.name, begun, ended, on_device))


def reading_alone(engine: Engine) -> Engine:
    """Return an engine on the same weights in whose plans no prefix is read together.

    Its decode steps have shapes of their own, so that it replays no step that was captured for rows
    which read together.
    """
    return Engine(engine.config, engine.loaded, replace(engine.policy, read_once=NEVER))
