"""DeviceProfile: what a GPU did during a run, kernel by kernel, and what the host did beside it.

Kernels of replayed graphs are seen like those that the host launches one by one, since torch's
profiler is told of them by the driver. It makes launches slower: a run that is profiled is not one
that is timed.
"""

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, TypedDict

from torch.profiler import ProfilerActivity, profile

from pagedrun.paged.bench.runs.step_log import Step


class KernelTime(TypedDict):
    """Kernels of one name: how many ran, and their seconds together."""

    name: str
    count: int
    seconds: float


class DeviceProfileFigures(TypedDict):
    """What a GPU and the host did in a run of its own under the profiler.

    graph_steps were replayed; prompt_steps worked on prompts; eager_steps only decoded, kernel by
    kernel, those that were captured included. device_busy: the share of `seconds` in which at least
    one kernel ran. host_s_per_step: seconds in which the host did not wait for the device.
    """

    seconds: float
    steps: int
    graph_steps: int
    prompt_steps: int
    eager_steps: int
    device_busy_s: float
    device_busy: float
    host_waited_s: float
    host_s_per_step: float
    graph_launches: int
    kernel_launches: int
    kernels: list[KernelTime]


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


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """The spans of a run that took `seconds`, and the steps that it had."""

    seconds: float
    spans: Seq[Span]
    steps: Seq[Step]

    def to_dict(self) -> DeviceProfileFigures:
        """Return what follows from the spans, as a result states it."""
        device = [span for span in self.spans if span.on_device]
        host = [span for span in self.spans if not span.on_device]
        busy = covered(device)
        waited = covered(span for span in host if span.name in _WAITS)
        # Before the first tokens there is a step of which nothing is known.
        steps = [step for step in self.steps if step.generated_tokens or step.op_seconds]
        replayed = sum(not step.op_seconds for step in steps)
        prompts = sum(not step.only_decodes for step in steps)
        return {
            "seconds": self.seconds,
            "steps": len(steps),
            "graph_steps": replayed,
            "prompt_steps": prompts,
            "eager_steps": len(steps) - replayed - prompts,
            "device_busy_s": busy,
            "device_busy": busy / self.seconds,
            "host_waited_s": waited,
            "host_s_per_step": (self.seconds - waited) / max(len(steps), 1),
            "graph_launches": sum(span.name in _GRAPHS for span in host),
            "kernel_launches": sum(_LAUNCH in span.name for span in host),
            "kernels": by_time(device),
        }


def covered(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of the spans was going on."""
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda each: each.start):
        total += max(span.end - max(span.start, reached), 0.0)
        reached = max(reached, span.end)
    return total


def by_time(spans: Iterable[Span]) -> list[KernelTime]:
    """Return count and seconds of the kernels of each name, the dearest first."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for span in spans:
        seconds[span.name].append(span.end - span.start)
    dearest = sorted(seconds, key=lambda name: -sum(seconds[name]))
    times: list[KernelTime] = [
        {"name": name, "count": len(seconds[name]), "seconds": sum(seconds[name])}
        for name in dearest[:MOST_KERNELS]
    ]
    rest = [each for name in dearest[MOST_KERNELS:] for each in seconds[name]]
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
