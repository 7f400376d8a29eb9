"""JobListener: what a job reports while it runs, for a display to draw."""

from enum import StrEnum
from typing import Protocol

from pagedrun.paged.job.progress.shown_answer import ShownAnswer
from pagedrun.paged.job.progress.tally import Tally
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.text.prompts.prompt_renderer import PromptModes


class Phase(StrEnum):
    """What a job is doing, in order."""

    READ = "reading rows"
    ENCODE = "encoding prompts"
    LOAD = "loading the model"
    COMPILE = "compiling the kernels (once on a machine; less than a minute)"
    CALIBRATE = "timing a few rows"  # where a plan is asked to
    PLAN = "planning"
    RUN = "running"
    FINISH = "writing the report"


class JobListener(Protocol):
    """Called from the job's own thread; must return soon and must not raise."""

    def on_phase(self, phase: Phase) -> None:
        """Say that a phase began."""

    def on_prompts(self, modes: PromptModes) -> None:
        """Take how the prompts of the first window are read, once they are encoded."""

    def on_step(self, record: StepRecord) -> None:
        """Take the engine's state after a step."""

    def on_answer(self, answer: ShownAnswer) -> None:
        """Take what became of a row that was written."""

    def on_tally(self, tally: Tally) -> None:
        """Take the counts: when all rows are read, and after each that is written."""

    def on_warning(self, message: str) -> None:
        """Take something that the user should know and that stops nothing."""


class SilentListener:
    """Hears everything, says nothing."""

    def on_phase(self, phase: Phase) -> None:
        """Ignore it."""

    def on_prompts(self, modes: PromptModes) -> None:
        """Ignore it."""

    def on_step(self, record: StepRecord) -> None:
        """Ignore it."""

    def on_answer(self, answer: ShownAnswer) -> None:
        """Ignore it."""

    def on_tally(self, tally: Tally) -> None:
        """Ignore it."""

    def on_warning(self, message: str) -> None:
        """Ignore it."""
