"""What reports and plans say of a model's weights, in words."""

from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.cli.terminal.sizes import show_size
from pagedrun.paged.report.record.weight_figures import WeightFigures
from pagedrun.paged.values.errors import option

if TYPE_CHECKING:  # they import much
    from pagedrun.paged.job.planned.planned_weights import Unpacking
    from pagedrun.paged.job.progress import JobListener
    from pagedrun.paged.values.engine_config import EngineConfig


def describe_weights(weights: WeightFigures) -> str:
    """Return the bits of a weight in memory and in its file, where that is another number."""
    held, stored = weights["held_bits"], weights["stored_bits"]
    told = f"{held:.3g} bits a weight"
    if weights["stored_bytes"] is None or stored is None:
        return told
    return f"{told}; on disk {show_size(weights['stored_bytes'])}, {stored:.3g} bits a weight"


def unpacking_warning(model: Path, found: "Unpacking") -> str:
    """Return the sentence about weights that take more memory than their file."""
    times = found.held_bytes / found.stored_bytes
    told = (
        f"{model.name}: its weights take {show_size(found.stored_bytes)} on disk and "
        f"{show_size(found.held_bytes)} in memory, {times:.1f} times as much: they are unpacked to "
        f"{found.dtype}, as no kernels of this run compute with fewer bits"
    )
    if not found.settings:
        return f"{told}; no setting holds them in less on this machine"
    flags = " ".join(f"{option(name)} {value}" for name, value in found.settings)
    return f"{told}; {flags} holds them in {show_size(found.least_bytes)}"


def warn_of_weights(engine: "EngineConfig", listener: "JobListener") -> None:
    """Tell of a quantised model that is unpacked to a multiple of its size, before it is loaded."""
    from pagedrun.paged.job.planned.planned_weights import Unpacking

    found = Unpacking.of(engine)
    if found is not None:
        listener.on_warning(unpacking_warning(engine.model, found))
