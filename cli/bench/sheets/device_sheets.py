"""What a GPU did in a profiled run, as tables."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.spread_text import NOTHING, show_ms

if TYPE_CHECKING:
    from pagedrun.paged.bench.runs.device_profile import DeviceProfileFigures
    from pagedrun.paged.bench.runs.throughput import ThroughputBenchFigures


def device_sheets(result: "ThroughputBenchFigures") -> list[Sheet]:
    """Return what device and host did, and the kernels by time."""
    profiled = [each for each in result["contenders"] if "device_profile" in each]
    profiles = [each["device_profile"] for each in profiled]
    header = ("", *(each["name"] for each in profiled))

    def row(label: str, show: "Callable[[DeviceProfileFigures], str]") -> tuple[str, ...]:
        return (label, *map(show, profiles))

    steps = [
        row("steps", lambda each: f"{each['steps']:,}"),
        row("replayed from graphs", lambda each: f"{each['graph_steps']:,}"),
        row("with prompts", lambda each: f"{each['prompt_steps']:,}"),
        row("decoding, not replayed", lambda each: f"{each['eager_steps']:,}"),
        row("GPU busy", lambda each: f"{each['device_busy']:.1%}"),
        row("host ms a step", lambda each: show_ms(each["host_s_per_step"])),
        row("host waited, s", lambda each: f"{each['host_waited_s']:.3f}"),
        row("launches of graphs", lambda each: f"{each['graph_launches']:,}"),
        row("launches of kernels", lambda each: f"{each['kernel_launches']:,}"),
    ]
    return [
        Sheet(
            "GPU and host",
            header,
            steps,
            "An additional run under the profiler, which slows the host.",
        ),
        Sheet("Kernels by time, s", ("kernel", *header[1:]), _kernels(profiles)),
    ]


def _kernels(profiles: "list[DeviceProfileFigures]") -> list[tuple[str, ...]]:
    tables = [{each["name"]: each for each in profile["kernels"]} for profile in profiles]
    names = dict.fromkeys(name for table in tables for name in table)
    most = {name: max(t[name]["seconds"] for t in tables if name in t) for name in names}
    return [
        (
            _short(name),
            *(
                f"{table[name]['seconds']:.3f} in {table[name]['count']:,}"
                if name in table
                else NOTHING
                for table in tables
            ),
        )
        for name in sorted(most, key=lambda each: -most[each])
    ]


def _short(name: str) -> str:
    """Return the name of a kernel without the parameters of a template."""
    return name if len(name) <= 60 else f"{name[:57]}..."
