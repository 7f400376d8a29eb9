"""Verification of drafts: the answers of a step are followed through their drafts.

A draft is right if the answer has its token at its position, drawn by the row itself or forced by a
grammar. Keys and values of right drafts are kept, those of others are written again. Behind a right
draft that is the newest token of its answer the next token can be drawn, from logits that the step
has computed. One token at a time, so that penalties, grammars and stop conditions see what they
would see without drafts.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.step_input import Drafted


@dataclass(slots=True)
class Followed:
    """Drafts of a sequence in a step, the number that is right, and of these the number stored."""

    drafted: Drafted
    num_right: int = 0
    num_stored: int = 0


class Verification:
    """Drafts of a step, beside the answers that they were made for.

    `all`: those of each sequence, with results after the last draw.
    """

    def __init__(self, drafts: Seq[Drafted], scheduler: Scheduler) -> None:
        self.all = [Followed(each) for each in drafts]
        self._going = self.all
        self._scheduler = scheduler

    def due(self) -> Int64s:
        """Return the draws whose tokens are the next of their answers, [num_due] int64, ascending;
        none at the end."""
        self._going = [each for each in self._going if self._is_due(each)]
        draws = [each.drafted.first_draw + each.num_right - 1 for each in self._going]
        return np.array(draws, dtype=np.int64)

    def append(self, tokens: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Append the tokens of the draws that were due to their answers.

        A negative one stands for none; the next step repeats its draw. Returns row indices,
        positions in the answers, and tokens, [num_appended] int64 each.
        """
        is_drawn = tokens >= 0
        for each, has_token in zip(self._going, is_drawn.tolist(), strict=True):
            self._store(each, each.num_right if has_token else each.num_right - 1)
        drawn = zip(self._going, is_drawn.tolist(), strict=True)
        self._going = [each for each, has_token in drawn if has_token]
        row_indices = np.array([each.drafted.row_index for each in self._going], dtype=np.int64)
        positions = self._scheduler.table.num_output_tokens[row_indices]
        self._scheduler.table.append_outputs(row_indices, tokens[is_drawn])
        return row_indices, positions, tokens[is_drawn]

    def _is_due(self, each: Followed) -> bool:
        """Return whether the newest token of an answer is a right draft; store right ones if the
        answer goes on without them."""
        table, drafted = self._scheduler.table, each.drafted
        if table.uid[drafted.row_index] != drafted.uid:
            return False  # finished
        end = int(table.num_output_tokens[drafted.row_index])
        answer = table.outputs[drafted.row_index, drafted.position : end].tolist()
        left = zip(answer[each.num_right :], drafted.tokens[each.num_right :], strict=False)
        for token, draft in left:
            if token != draft:
                break
            each.num_right += 1
        if each.num_right == len(answer) > 0:
            return True
        self._store(each, each.num_right)
        return False

    def _store(self, each: Followed, num_right: int) -> None:
        self._scheduler.accept(each.drafted.row_index, num_right - each.num_stored)
        each.num_stored = num_right
