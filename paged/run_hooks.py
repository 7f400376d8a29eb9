"""RunHooks: who hears of a run while it goes on."""

from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.paged.report.record.timeline import StepRecord


@dataclass(frozen=True, slots=True)
class RunHooks:
    """Called in the thread that iterates the run.

    `on_step` takes the engine's state after a step, `on_window` is called for each window but the
    first, `warn` takes what the user should know and that stops nothing.
    """

    on_step: Callable[[StepRecord], None] | None = None
    on_window: Callable[[], None] | None = None
    warn: Callable[[str], None] | None = None


NO_HOOKS = RunHooks()
