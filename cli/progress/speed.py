"""SpeedLog: how a run's speed varies, as other programs take the processor from it."""

from math import log

import numpy as np

from pagedrun.paged.report.record.decimated import Decimated
from pagedrun.paged.report.record.step_costs import USUAL_NEW_TOKEN, USUAL_STEP
from pagedrun.paged.report.record.timeline import StepRecord

NUM_MARKS = 128
NUM_PARTS = 8
MIN_PARTS = 3
MIN_PART_S = 0.5  # shorter ones vary by what their steps computed


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
    def spread(self) -> float:
        """The standard deviation of the logarithm of the speed, over equal parts of the run so far;
        0 where there is too little to tell."""
        marks = self._marks.items
        part_s = max(marks[-1][0] / NUM_PARTS, MIN_PART_S) if marks else MIN_PART_S
        # Between two words of replicas nothing is done, as far as is known.
        speeds, began_s, before = [], 0.0, 0.0
        for at_s, done in marks:
            if at_s - began_s >= part_s and done > before:
                speeds.append(log((done - before) / (at_s - began_s)))
                began_s, before = at_s, done
        return float(np.std(speeds)) if len(speeds) >= MIN_PARTS else 0.0
