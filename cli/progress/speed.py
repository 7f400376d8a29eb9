"""SpeedRange: how far a run's speed has varied, as other programs take the processor from it."""

from dataclasses import dataclass

from pagedrun.paged.report.record.decimated import Decimated
from pagedrun.paged.report.record.step_costs import USUAL_NEW_TOKEN, USUAL_STEP
from pagedrun.paged.report.record.timeline import StepRecord

NUM_MARKS = 128
NUM_PARTS = 6
MIN_PART_S = 0.5  # shorter ones vary by what their steps computed


@dataclass(frozen=True, slots=True)
class SpeedRange:
    """The slowest and the fastest part of a run, as shares of its mean speed."""

    least: float = 1.0
    most: float = 1.0


class SpeedLog:
    """Notes what steps computed by when. Speed is in prompt tokens a second, a step and a new token
    each counted as the usual number of them, so that reading prompts and answering compare."""

    def __init__(self) -> None:
        self._marks: Decimated[tuple[float, float]] = Decimated(NUM_MARKS)

    def note(self, record: StepRecord) -> None:
        """Take note of a step."""
        if self._marks.wants(record.step):
            num_prompt = record.prompt_tokens - record.cached_tokens
            num_new = record.generated_tokens * USUAL_NEW_TOKEN
            done = record.step * USUAL_STEP + num_prompt + num_new
            self._marks.add(record.step, (record.t, done))

    @property
    def range(self) -> SpeedRange:
        """How far the speed of parts of the run was from that of the whole."""
        marks = self._marks.items
        if not marks or marks[-1][0] < 2 * MIN_PART_S:
            return SpeedRange()
        end_s, all_done = marks[-1]
        part_s = max(end_s / NUM_PARTS, MIN_PART_S)
        speeds, began_s, before = [], 0.0, 0.0
        for at_s, done in marks:
            if at_s - began_s >= part_s:
                speeds.append((done - before) / (at_s - began_s) * end_s / all_done)
                began_s, before = at_s, done
        return SpeedRange(min(speeds, default=1.0), max(speeds, default=1.0))
