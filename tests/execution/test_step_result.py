"""Results of steps: which token belongs to which sequence, whoever has ended meanwhile."""

import numpy as np
import torch

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.op_values import TokenLogprobs
from pagedrun.paged.execution.device import Device, HostCopy
from pagedrun.paged.execution.step_result import HostLogprobs, InFlight, KnownTokens, StepResult
from pagedrun.paged.scheduling.sequence_table import UNKNOWN_TOKEN, SequenceTable
from pagedrun.paged.scheduling.step_input import StepInput
from tests.support.made_step import MadeChunk, made_sequence, made_step

NO_STEP = made_step()


def in_flight(
    result: StepResult, table: SequenceTable, rows: list[int], positions: list[int]
) -> InFlight:
    row_indices: Int64s = np.array(rows, dtype=np.int64)
    return InFlight(
        result,
        NO_STEP,
        HostCopy(result.ids),
        None,
        None,
        row_indices,
        table.uid[row_indices],
        np.array(positions, dtype=np.int64),
    )


def test_a_token_is_dropped_whose_sequence_has_ended_or_is_another() -> None:
    table = SequenceTable()
    rows = [made_sequence([1, 2], [5] * 4, index=index, table=table) for index in range(4)]
    step = in_flight(
        StepResult(torch.arange(4)), table, [row.row_index for row in rows], [3, 3, 3, 3]
    )
    assert step.is_live(table).tolist() == [True] * 4
    rows[1].truncate(3)  # ended by the token before
    table.remove(rows[2].row_index)
    table.remove(rows[3].row_index)
    new = made_sequence([1, 2], [5] * 4, index=9, table=table)
    assert new.row_index == rows[3].row_index, "no row is used again"
    assert step.is_live(table).tolist() == [True, False, False, False]


def test_tokens_of_two_pieces_are_those_of_their_draws() -> None:
    # The first piece was replayed in four rows, of which its draws have the last and the second.
    first = StepResult(torch.tensor([10, 11, 12, 13]), order=np.array([3, 1]))
    second = StepResult(torch.tensor([20, 21]))
    for one, two, tokens in (
        (first, second, [13, 11, 20, 21]),
        (second, first, [20, 21, 13, 11]),
        (second, second, [20, 21, 20, 21]),
    ):
        whole = one.followed_by(two)
        table = SequenceTable()
        assert in_flight(whole, table, [], []).wait().tolist() == tokens
        every = np.arange(len(tokens))
        assert whole.ids[torch.from_numpy(whole.index_of(every))].tolist() == tokens


def known(step: StepInput, before: InFlight) -> list[int]:
    found = KnownTokens.of(step, before)
    assert found is not None
    return found.chosen(torch.from_numpy(found.sources)).tolist()


def test_the_next_step_goes_on_from_its_own_draw() -> None:
    chunk = MadeChunk([1, 2], [UNKNOWN_TOKEN], [0], 2, 3)
    step, table = made_step(chunk, chunk), SequenceTable()
    step.sources[:] = [2, 0]  # draws of the step before
    ids = torch.tensor([10, 11, 12, 13])
    assert known(step, in_flight(StepResult(ids), table, [], [])) == [12, 10]
    seated = StepResult(ids, order=np.array([3, 0, 1]))
    assert known(step, in_flight(seated, table, [], [])) == [11, 13]
    assert KnownTokens.of(NO_STEP, None) is None


def test_log_probabilities_have_the_fewest_digits_of_their_float32() -> None:
    found = TokenLogprobs(
        torch.tensor([-0.1, -1 / 3]),
        torch.tensor([1, 2]),
        torch.tensor([[4], [5]]),
        torch.tensor([[-0.1], [-0.7]]),
    )
    host = HostLogprobs.of(found, Device.__new__(_Host))
    assert host is not None
    one, two = host.wait()
    assert (one.logprob, one.rank, one.top) == (-0.1, 1, [(4, -0.1)])
    assert (two.logprob, two.rank, two.top) == (-0.33333334, 2, [(5, -0.7)])


class _Host(Device):
    """Copies nothing."""

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        return HostCopy(tensor)
