"""RunPolicy: how an engine's runs decide where no flag says it."""

from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.kernels.attention.read_once import ReadOnce
from pagedrun.paged.scheduling.admission_policy import OutputLengthPredictor
from pagedrun.paged.scheduling.monitoring import MIN_STEPS


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The same for every run of an engine.

    `new_predictor` makes what decides in one run who may join those that run. `read_once` says
    when a shared prefix is read once for all of its rows; None leaves that to the device. Up to
    `min_stall_steps` steps in which no row gets a token are never too many.
    """

    new_predictor: Callable[[], OutputLengthPredictor] = OutputLengthPredictor
    read_once: ReadOnce | None = None
    min_stall_steps: int = MIN_STEPS


DEFAULT_POLICY = RunPolicy()
