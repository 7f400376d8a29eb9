"""Rows of a captured step: what the device is told must leave it as a fresh start would."""

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.execution.decode_buffers import DecodeBuffers, GraphRows, GraphShape
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import NO_UID, UNKNOWN_TOKEN, SequenceTable
from pagedrun.paged.scheduling.step_input import StepBuilder, StepInput
from tests.support.made_step import generate, made_sequence

SIZE = 4
SHAPE = GraphShape(num_rows=6, width=16, num_shared_partitions=0, num_stop_ids=2)
EOS = (1, 2)


@dataclass
class Decoding:
    """Sequences that decode, in one table, and the buffers of a device that follows them."""

    table: SequenceTable = field(default_factory=SequenceTable)
    running: list[Sequence] = field(default_factory=list)
    num_blocks: int = 0
    seats: GraphRows = field(default_factory=lambda: GraphRows(SHAPE, 1, SIZE))

    def __post_init__(self) -> None:
        self.buffers = self.fresh()

    def fresh(self) -> DecodeBuffers:
        return DecodeBuffers.allocate(6, 16, 2, 1, choose_device("cpu"))

    def begin(self, num_prompt: int, **params: object) -> None:
        index = self.num_blocks
        made = made_sequence(
            range(num_prompt), (), self.blocks(-(-num_prompt // SIZE)), index=index,
            table=self.table, max_tokens=40, **params,  # type: ignore[arg-type]
        )  # fmt: skip
        self.running.append(made)

    def blocks(self, count: int) -> list[int]:
        self.num_blocks += count
        return list(range(self.num_blocks - count, self.num_blocks))

    def step(self) -> StepInput:
        """Return the step that computes each one's newest token, which the host does not know."""
        builder = StepBuilder(self.table)
        places = [each.row_index for each in self.running]
        self.table.num_draw[places] = np.arange(len(places))
        for each in self.running:
            generate(each, UNKNOWN_TOKEN)
            end = each.num_tokens
            each.num_computed_tokens = each.num_stored_tokens = end
            if -(-end // SIZE) > len(each.block_table):
                each.block_table = [*each.block_table, *self.blocks(1)]
        builder.decode(np.array(places, dtype=np.int64))
        return builder.build()

    def seated(self, step: StepInput) -> Int64s:
        rows, update = self.seats.assign(step, EOS, reads_together=True)
        self.buffers.update(update, torch.arange(100, 100 + step.num_chunks))
        return rows

    def advance(self, rows: Int64s) -> None:
        """Do what a replay does to the buffers, the token drawn apart."""
        used = self.buffers.integers[2] > 0
        self.buffers.integers[1].add_(used)
        self.buffers.integers[2].add_(used)
        assert self.buffers.early_stops is not None
        self.buffers.early_stops.num_missing.sub_(1).clamp_(min=0)
        self.seats.advance(rows)


def assert_same(step: StepInput, rows: Int64s, kept: DecodeBuffers, fresh: Decoding) -> None:
    """The rows hold what those of a device hold that knew nothing; others are empty."""
    other = GraphRows(SHAPE, 1, SIZE)
    others, update = other.assign(step, EOS, reads_together=True)
    loaded = fresh.fresh()
    loaded.update(update, torch.arange(100, 100 + step.num_chunks))
    assert torch.equal(kept.integers[1:, rows], loaded.integers[1:, others])
    assert torch.equal(kept.floats[:, rows], loaded.floats[:, others])
    assert kept.early_stops is not None
    assert loaded.early_stops is not None
    missing, ids = kept.early_stops.num_missing[rows], kept.early_stops.stop_ids[rows]
    assert torch.equal(missing, loaded.early_stops.num_missing[others])
    early = missing > 0
    assert torch.equal(ids[early], loaded.early_stops.stop_ids[others][early])
    for index, row in enumerate(rows.tolist()):
        held = -(-int(step.ends[index]) // SIZE)
        assert torch.equal(
            kept.block_tables[:, row, :held], loaded.block_tables[:, others[index], :held]
        )
    holes = np.setdiff1d(np.arange(SHAPE.num_rows), rows)
    assert not kept.integers[2, holes].any()


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_come_and_go_leave_the_device_as_a_fresh_start_would(seed: int) -> None:
    rng = random.Random(seed)
    decoding = Decoding()
    for _ in range(40):
        for each in [one for one in decoding.running if rng.random() < 0.15]:
            decoding.running.remove(each)
        while len(decoding.running) < 6 and (not decoding.running or rng.random() < 0.5):
            decoding.begin(
                rng.randrange(1, 12),
                temperature=rng.choice([0.0, 0.5]),
                min_tokens=rng.choice([0, 6]),
                seed=rng.randrange(9),
            )
        decoding.running = [each for each in decoding.running if each.num_output_tokens < 20]
        if not decoding.running:
            continue
        if rng.random() < 0.2:
            rng.shuffle(decoding.running)
        step = decoding.step()
        if rng.random() < 0.1:
            decoding.seats.forget()
        rows = decoding.seated(step)
        assert len(set(rows.tolist())) == step.num_chunks
        assert_same(step, rows, decoding.buffers, decoding)
        decoding.advance(rows)


def test_who_goes_on_keeps_the_row_and_is_told_nothing_but_new_blocks() -> None:
    decoding = Decoding()
    for _ in range(3):
        decoding.begin(3)
    decoding.advance(decoding.seated(decoding.step()))
    step = decoding.step()  # a second block begins in each
    rows, update = decoding.seats.assign(step, EOS, reads_together=True)
    assert rows.tolist() == [0, 1, 2]
    assert (len(update.rows), len(update.cells)) == (0, 3)
    decoding.seats.advance(rows)
    _, update = decoding.seats.assign(decoding.step(), EOS, reads_together=True)
    assert update.is_empty


def test_a_newcomer_takes_a_hole_and_asks_for_its_own_token() -> None:
    decoding = Decoding()
    for _ in range(3):
        decoding.begin(3)
    decoding.advance(decoding.seated(decoding.step()))
    del decoding.running[1]
    decoding.begin(5)
    rows = decoding.seated(decoding.step())
    assert rows.tolist() == [0, 2, 1]
    # Of the tokens 100, 101 and 102 that the step before drew, the third is the newcomer's.
    assert decoding.buffers.integers[0, 1] == 102


def test_a_row_that_was_left_reads_nothing_with_others() -> None:
    decoding = Decoding()
    for _ in range(3):
        decoding.begin(3, num_read_once_tokens=2 * PARTITION_TOKENS + 5)
    decoding.advance(decoding.seated(decoding.step()))
    assert decoding.seats.num_partitions.tolist() == [2, 2, 2, 0, 0, 0]
    del decoding.running[1]
    decoding.seated(decoding.step())
    assert decoding.seats.num_partitions.tolist() == [2, 0, 2, 0, 0, 0]


def test_a_draft_is_told_in_each_step() -> None:
    """Also one right behind the last: the device has advanced that by the token that it drew."""
    decoding = Decoding()
    for _ in range(2):
        decoding.begin(5)
    uids = np.array([0, NO_UID - 1])
    decoding.advance(decoding.seated(replace(decoding.step(), uids=uids)))
    step = replace(decoding.step(), uids=uids)
    rows, update = decoding.seats.assign(step, EOS, reads_together=True)
    assert rows.tolist() == [0, 1]
    assert update.rows.tolist() == [1]


def test_a_table_with_other_blocks_is_told_anew_where_blocks_were_moved() -> None:
    decoding = Decoding()
    decoding.begin(6)
    decoding.advance(decoding.seated(decoding.step()))
    (one,) = decoding.running
    one.block_table = [one.block_table[0], 77]
    step = replace(decoding.step(), transfers=("moved",))  # type: ignore[arg-type]
    rows = decoding.seated(step)
    assert_same(step, rows, decoding.buffers, decoding)
    assert decoding.buffers.block_tables[0, 0, 1] == 77


def test_a_block_that_a_wrong_draft_had_is_not_that_of_the_row_later() -> None:
    decoding = Decoding()
    decoding.begin(6)
    (one,) = decoding.running
    reserved = decoding.blocks(1)
    one.block_table = [*one.block_table, *reserved]
    decoding.advance(decoding.seated(decoding.step()))
    one.block_table = one.block_table[:2]
    decoding.advance(decoding.seated(decoding.step()))
    step = decoding.step()  # begins the third block
    assert step.block_tables[0][0, 2] != reserved[0]
    assert_same(step, decoding.seated(step), decoding.buffers, decoding)
