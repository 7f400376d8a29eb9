"""View: how the result of a benchmark is shown, and the views of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from pagedrun.cli.bench.publish import describe_model, describe_run
from pagedrun.cli.bench.sheets.accuracy_sheets import (
    accuracy_sheets,
    describe_text,
    describe_ways,
)
from pagedrun.cli.bench.sheets.host_sheets import describe_host_rows, host_sheets
from pagedrun.cli.bench.sheets.kernels_sheets import (
    describe_roofline,
    describe_shape,
    describe_sizes,
    kernels_sheets,
)
from pagedrun.cli.bench.sheets.memory_sheets import describe_requests, describe_token, memory_sheets
from pagedrun.cli.bench.sheets.prefix_sheets import describe_sweep, prefix_sheets
from pagedrun.cli.bench.sheets.sheet import Sheet
from pagedrun.cli.bench.sheets.throughput_sheets import describe_rows, throughput_sheets
from pagedrun.paged.bench.accuracy.accuracy_figures import AccuracyBenchFigures
from pagedrun.paged.bench.host.host_figures import HostBenchFigures
from pagedrun.paged.bench.kernels.kernel_figures import KernelsBenchFigures
from pagedrun.paged.bench.memory.memory_figures import MemoryBenchFigures
from pagedrun.paged.bench.result import Figures, Result
from pagedrun.paged.bench.runs.run_figures import PrefixBenchFigures, ThroughputBenchFigures


@dataclass(frozen=True, slots=True)
class View(Generic[Figures]):
    """What is said of the figures of the benchmark `name` above their tables, and these.

    `described` are lines by their labels.
    """

    name: str
    described: Mapping[str, Callable[[Figures], str]]
    sheets: Callable[[Figures], list[Sheet]]

    def lines(self, result: Result[Figures]) -> list[tuple[str, str]]:
        """Return what was run, on what and when, as labelled lines."""
        figures = result.figures
        described = [(label, describe(figures)) for label, describe in self.described.items()]
        return describe_run(result.frame, figures["device"], described)


THROUGHPUT: View[ThroughputBenchFigures] = View(
    "throughput", {"model": describe_model, "rows": describe_rows}, throughput_sheets
)
PREFIX: View[PrefixBenchFigures] = View(
    "prefix", {"model": describe_model, "rows": describe_sweep}, prefix_sheets
)
KERNELS: View[KernelsBenchFigures] = View(
    "kernels",
    {"layer": describe_shape, "sizes": describe_sizes, "roof": describe_roofline},
    kernels_sheets,
)
MEMORY: View[MemoryBenchFigures] = View(
    "memory", {"token": describe_token, "requests": describe_requests}, memory_sheets
)
HOST: View[HostBenchFigures] = View("host", {"rows": describe_host_rows}, host_sheets)
ACCURACY: View[AccuracyBenchFigures] = View(
    "accuracy", {"compared": describe_ways, "text": describe_text}, accuracy_sheets
)

_ALL: tuple[View[Any], ...] = (THROUGHPUT, PREFIX, KERNELS, MEMORY, HOST, ACCURACY)
VIEWS = {view.name: view for view in _ALL}
