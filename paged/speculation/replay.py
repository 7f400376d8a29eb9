"""Replay of recorded answers: the steps of a run with drafts, without a model.

A draft is right exactly if it equals the recorded token. So the scheduler, the drafters and the
verification of a run go through recorded answers as if a model drew them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.metrics.report_sections import SpeculationFigures
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.step_input import SamplingMetadata
from pagedrun.paged.speculation.costs import TRIAL_STEPS
from pagedrun.paged.speculation.speculation import Speculation
from pagedrun.paged.speculation.verification import Verification
from pagedrun.paged.values.planned_request import PlannedRequest

NUM_UNUSUAL = 2  # steps of a number of rows until a run repeats a recorded one


class Replay:
    """Steps of a run whose answers are known. Call `run` once.

    `num_rows`, `num_tokens`: requests so far, and tokens of their answers. `seconds`: of the steps
    so far, in the unit of `seconds_of`.
    """

    def __init__(
        self,
        answers: Mapping[int, Seq[Seq[int]]],
        scheduler: Scheduler,
        speculation: Speculation,
        seconds_of: Callable[[int], float],
    ) -> None:
        """answers: token ids of the samples of each row, by its index. seconds_of: returns the
        expected seconds of a step by the number of its tokens, in any unit."""
        self._recorded = answers
        self._scheduler = scheduler
        self._speculation = speculation
        self._seconds_of = seconds_of
        # Prompt tokens and answer by row and sample, of those that have not ended.
        self._answers: dict[tuple[int, int], tuple[int, Seq[int]]] = {}
        self._num_same: Counter[int] = Counter()  # steps by their rows
        self.num_rows = self.num_tokens = 0
        self.seconds = 0.0

    def run(self, planned: Iterable[PlannedRequest], count: int) -> SpeculationFigures:
        """Replay `count` requests, in run order; return the figures of their drafts."""
        scheduler = self._scheduler
        scheduler.add(map(self._entered, planned), count)
        while scheduler.has_work:
            if scheduler.is_out:
                scheduler.end_plan()
            self._step()
        return self._speculation.figures

    def _entered(self, planned: PlannedRequest) -> PlannedRequest:
        """Take the answers of a request, as long and as many as it may have."""
        request = planned.request
        params = request.params
        outputs = self._recorded[request.index][: params.num_drawn_samples]
        for sample, token_ids in enumerate(outputs):
            answer = token_ids[: params.max_tokens]
            self._answers[request.index, sample] = len(request.prompt_token_ids), answer
            self.num_tokens += len(answer)
        self.num_rows += 1
        return replace(planned, num_samples=len(outputs))

    def _step(self) -> None:
        scheduler, speculation, table = self._scheduler, self._speculation, self._scheduler.table
        scheduler.begin_step()
        step = scheduler.schedule(speculation.drafts(knows_tokens=True))
        grown = scheduler.update()
        positions = table.num_output_tokens[grown] - 1
        table.outputs[grown, positions] = self._drawn(step.draws, np.arange(len(grown)))
        self._finish(grown, positions)
        verification = Verification(step.drafts, scheduler)
        while len(due := verification.due()):
            row_indices, positions, _ = verification.append(self._drawn(step.draws, due))
            self._finish(row_indices, positions)
        speculation.note_step(
            len(grown), step.num_tokens, verification.all, has_prompts=step.has_prompts
        )
        self._note_seconds(step.num_tokens, has_prompts=step.has_prompts)

    def _note_seconds(self, num_rows: int, *, has_prompts: bool) -> None:
        """Note the expected duration of a step; the first ones of a number of rows take longer."""
        seconds, is_usual = self._seconds_of(num_rows), True
        if not has_prompts:
            self._num_same[num_rows] += 1
            is_usual = self._num_same[num_rows] > NUM_UNUSUAL
        if not is_usual:
            seconds *= 1 + TRIAL_STEPS / NUM_UNUSUAL
        self.seconds += seconds
        self._speculation.note_seconds(seconds, is_usual=is_usual)

    def _drawn(self, draws: SamplingMetadata, chosen: Int64s) -> Int64s:
        """Return the recorded tokens of some draws; chosen: [num_chosen] int64, their indices."""
        drawn = np.stack([draws.row, draws.sample, draws.position])[:, chosen].T
        tokens = []
        for row, sample, position in drawn.tolist():
            num_prompt_tokens, answer = self._answers[row, sample]
            tokens.append(answer[position - num_prompt_tokens])
        return np.array(tokens, dtype=np.int64)

    def _finish(self, row_indices: Int64s, positions: Int64s) -> None:
        """Finish the sequences whose answers end at these positions."""
        for row_index, position in zip(row_indices.tolist(), positions.tolist(), strict=True):
            sequence = self._scheduler.sequence_at(row_index)
            key = sequence.request.index, sequence.sample_index
            _, answer = self._answers[key]
            if position + 1 == len(answer):
                del self._answers[key]
                self._speculation.note_answer(sequence, answer)
                self._scheduler.finish(sequence)
