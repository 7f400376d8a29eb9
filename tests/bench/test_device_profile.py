"""What a profiled run says of a GPU: of spans made up, and of a host as if it were one."""

from dataclasses import dataclass, replace

import pytest

from pagedrun.cli.bench.throughput import throughput_sheets
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.paged.bench.contender import (
    MOST_KERNELS,
    OTHERS,
    DeviceProfile,
    EngineContender,
    LoggedStep,
    Span,
    by_time,
    covered,
)
from pagedrun.paged.bench.op_timer import OpTimer
from pagedrun.paged.bench.throughput import ThroughputBench
from pagedrun.paged.bench.workload import Workload
from pagedrun.paged.execution.device import Device
from tests.bench.tiny import FLOAT32, TINY, silent


def kernel(name: str, start: float, end: float) -> Span:
    return Span(name, start, end, on_device=True)


def call(name: str, start: float, end: float) -> Span:
    return Span(name, start, end, on_device=False)


class TestSpans:
    def test_time_covered_twice_counts_once(self) -> None:
        spans = [kernel("b", 4.0, 6.0), kernel("a", 0.0, 3.0), kernel("c", 1.0, 2.0)]
        assert covered(spans) == 5.0
        assert covered([*spans, kernel("d", 2.5, 4.5)]) == 6.0
        assert covered([]) == 0.0

    def test_kernels_that_are_not_named_are_added_up(self) -> None:
        spans = [kernel(f"k{n}", 0.0, 1.0 + n) for n in range(MOST_KERNELS + 2)]
        times = by_time([*spans, kernel("k0", 0.0, 1.0)])
        assert times[0] == {"name": "k26", "count": 1, "seconds": 27.0}
        assert times[-1] == {"name": OTHERS, "count": 3, "seconds": 4.0}
        assert sum(each["seconds"] for each in times) == sum(range(1, 28)) + 1.0


def test_what_waited_is_not_the_hosts_work() -> None:
    spans = [
        kernel("attention", 0.0, 2.0),
        kernel("product", 2.0, 3.0),
        kernel("attention", 4.0, 5.0),
        call("cudaLaunchKernel", 0.0, 0.5),
        call("cuLaunchKernelEx", 0.5, 1.0),
        call("cudaGraphLaunch", 1.0, 2.0),
        call("cudaEventSynchronize", 2.0, 5.0),
        call("cudaStreamSynchronize", 4.0, 6.0),
    ]
    steps = [
        LoggedStep(1.0, 4, {"prefill_attention": 0.1, "silu_mul": 0.1}),
        LoggedStep(1.0, 4, {"silu_mul": 0.1}),
        LoggedStep(1.0, 4, {}),
        LoggedStep(1.0, 4, {}),
        LoggedStep(1.0, 0, {}),  # before the first tokens there is nothing to look at
    ]
    figures = DeviceProfile.of(8.0, spans, steps)
    assert (figures.device_busy_s, figures.device_busy) == (4.0, 0.5)
    assert (figures.host_waited_s, figures.host_s_per_step) == (4.0, 1.0)
    assert (figures.graph_launches, figures.kernel_launches) == (1, 2)
    kinds = ("steps", "graph_steps", "prompt_steps", "eager_steps")
    assert [getattr(figures, kind) for kind in kinds] == [4, 2, 1, 1]
    assert [each["name"] for each in figures.kernels] == ["attention", "product"]
    assert figures.kernels[0]["seconds"] == 3.0


@dataclass(frozen=True, slots=True)
class QueuedHost(Device):
    """The host, which is said to be asynchronous as a GPU is."""

    @property
    def is_asynchronous(self) -> bool:
        return True


def test_an_asynchronous_device_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused; and a profile must find the ops of the run, and every step of it."""
    real = EngineContender.profile

    def profile(self: EngineContender, requests: object) -> object:
        device = self.engine.loaded.device
        queued = QueuedHost(**{name: getattr(device, name) for name in device.__slots__})
        monkeypatch.setattr(self.engine, "loaded", replace(self.engine.loaded, device=queued))
        return real(self, requests)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineContender, "profile", profile)
    bench = ThroughputBench(TINY, Workload(4, 32, 8, 5), FLOAT32, profile=True)
    result = bench.run(silent)
    figures = result["contenders"][0]["device_profile"]
    assert figures.steps == figures.prompt_steps + figures.eager_steps >= 5
    assert figures.graph_steps == 0
    assert 0 < figures.device_busy_s <= figures.seconds
    assert any(each["name"].startswith("aten::") for each in figures.kernels)
    titles = [sheet.title for sheet in throughput_sheets(result)]
    assert titles == ["Throughput", "GPU and host", "Kernels by time, s"]


def test_a_host_is_not_profiled_twice() -> None:
    timer = OpTimer(CpuBackend())
    contender = EngineContender("pagedrun", TINY.engine(timer.kernels, **FLOAT32), timer)
    assert contender.profile(Workload(2, 0, 8, 2).requests(512)) is None
