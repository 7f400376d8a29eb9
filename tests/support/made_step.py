"""Steps made by hand: sequences in any state, and chunks of them."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import NO_SCORES, SequenceTable
from pagedrun.paged.scheduling.step_input import StepBuilder, StepInput
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


def made_sequence(
    prompt: Seq[int],
    output: Seq[int] = (),
    blocks: Seq[int] = (),
    *,
    index: int = 0,
    table: SequenceTable | None = None,
    samples: tuple[int, ...] = (0,),
    num_read_once_tokens: int = 0,
    num_shared_tokens: int = 0,
    group: int = 0,
    **params: Any,
) -> Sequence:
    """Return a sequence with these generated tokens and this block table."""
    planned = PlannedRequest(
        Request(index, tuple(prompt), SamplingParams(**params)),
        num_read_once_tokens=num_read_once_tokens,
        num_shared_tokens=num_shared_tokens,
        group=(0, group),
    )
    made = Sequence(SequenceTable() if table is None else table, planned, samples)
    made.block_table = list(blocks)
    generate(made, *output)
    return made


def generate(sequence: Sequence, *tokens: int) -> None:
    """Append generated tokens."""
    for token in tokens:
        sequence.table.append_outputs(np.array([sequence.row_index]), token)


@dataclass(frozen=True)
class MadeChunk:
    """A chunk of a sequence of its own, to be made when its step is."""

    prompt: Seq[int]
    output: Seq[int]
    blocks: Seq[int]
    start: int
    end: int
    store_from: int | None = None
    score_from: int = NO_SCORES
    num_read_once_tokens: int = 0
    params: tuple[tuple[str, Any], ...] = ()

    @property
    def samples(self) -> bool:
        return self.end == len(self.prompt) + len(self.output)

    @property
    def stored(self) -> int:
        return self.start if self.store_from is None else self.store_from


def made_step(*chunks: MadeChunk) -> StepInput:
    """Return the step of these chunks, each of a sequence of its own."""
    table = SequenceTable()
    builder = StepBuilder(table)
    for index, each in enumerate(chunks):
        sequence = made_sequence(
            each.prompt,
            each.output,
            each.blocks,
            index=index,
            table=table,
            num_read_once_tokens=each.num_read_once_tokens,
            **dict(each.params),
        )
        sequence.num_computed_tokens = each.end
        builder.add(sequence, each.start, each.stored, each.score_from)
    return builder.build()
