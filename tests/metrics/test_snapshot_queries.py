"""What a snapshot is asked, against the plainest answer that the played run can give."""

from dataclasses import replace

import numpy as np
import pytest

from pagedrun.paged.metrics.block_tables import BlockLives, block_tables, lifetimes, residencies
from pagedrun.paged.metrics.inspection import top_prefixes
from pagedrun.paged.metrics.pool_moments import (
    BlockState,
    Moment,
    block_states,
    num_tokens_held,
    state_counts,
)
from pagedrun.paged.metrics.snapshot import Holdings, PrefixNodes
from pagedrun.paged.values.errors import UsageError
from tests.support.small_runs import BLOCK_SIZE, SmallRun, play

SEEDS = range(40)


def state_of(run: SmallRun, step: int, block: int) -> BlockState:
    holders = len(run.holders[step][block])
    if holders:
        return BlockState.SHARED if holders > 1 else BlockState.PRIVATE
    return BlockState.CACHED if run.fills[step][block] else BlockState.FREE


def lives_of(run: SmallRun) -> list[dict[str, int]]:
    """Play the run again, block by block and step by step."""
    lives = []
    for block in range(run.num_blocks):
        mine = [holding for holding in run.holdings if holding.block == block]
        current: list[list[int]] = []  # indices into `mine`, one list for each life
        for step in range(run.num_steps):
            for number, holding in enumerate(mine):
                if holding.begin != step:
                    continue
                is_held = any(other.end > step for other in mine[:number])
                if not current or not (holding.found or is_held):
                    current.append([])
                current[-1].append(number)
        for numbers in current:
            held = [mine[number] for number in numbers]
            begin, end = min(s.begin for s in held), max(s.end for s in held)
            lives.append(
                {
                    "block": block,
                    "begin": begin,
                    "end": end,
                    "position": held[0].position,
                    "rows": len({s.row for s in held}),
                    "hits": sum(s.found for s in held),
                    "peak_refs": max(
                        sum(s.begin <= step < s.end for s in held) for step in range(begin, end)
                    ),
                }
            )
    return lives


def as_dicts(lives: BlockLives) -> list[dict[str, int]]:
    columns = {name: column.tolist() for name, column in lives.columns().items()}
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_states_are_those_of_holders_and_fills(seed: int) -> None:
    run = play(seed)
    snapshot = run.snapshot(every=3)
    counts = state_counts(snapshot.samples)
    for number, step in enumerate(range(0, run.num_steps, 3)):
        expected = [state_of(run, step, block) for block in range(run.num_blocks)]
        assert block_states(snapshot.samples, number).tolist() == expected
        assert counts[number].tolist() == [expected.count(state) for state in BlockState]
        tokens = [f for f, h in zip(run.fills[step], run.holders[step], strict=True) if h]
        assert num_tokens_held(snapshot.samples, number) == sum(tokens)


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_list_what_a_row_holds(seed: int) -> None:
    run = play(seed)
    snapshot = run.snapshot()
    for step in range(0, run.num_steps, 4):
        moment = Moment.of(snapshot, step)
        for row in range(max(holding.row for holding in run.holdings) + 2):
            held = [s for s in run.holdings if s.row == row and s.begin <= step < s.end]
            found = {
                (table["sample"], block["logical"]): (
                    block["physical"],
                    block["ref_count"],
                    block["state"],
                    block["tokens"],
                    block["found"],
                    block["since"],
                )
                for table in block_tables(snapshot, row, moment)
                for block in table["blocks"]
            }
            assert found == {
                (s.sample, s.position): (
                    s.block,
                    len(run.holders[step][s.block]),
                    state_of(run, step, s.block).name.lower(),
                    run.fills[step][s.block],
                    s.found,
                    s.begin,
                )
                for s in held
            }


@pytest.mark.parametrize("seed", SEEDS)
def test_lives_end_where_a_block_is_filled_anew(seed: int) -> None:
    run = play(seed)
    lives = BlockLives.read(run.snapshot())
    assert as_dicts(lives) == lives_of(run)
    shared = as_dicts(lives.most_shared(3))
    expected = [life for life in lives_of(run) if life["peak_refs"] > 1]
    expected.sort(key=lambda each: (-each["peak_refs"], each["begin"] - each["end"], each["block"]))
    assert shared == expected[:3]


def test_the_runs_played_have_what_is_to_be_told_apart() -> None:
    """Guards the tests above: lives with several holders, found ones, second lives of a block."""
    lives = [life for seed in SEEDS for life in lives_of(play(seed))]
    assert max(life["peak_refs"] for life in lives) > 2
    assert sum(life["hits"] > 0 for life in lives) > 20
    assert len(lives) > 2 * len({life["block"] for life in lives}) * len(SEEDS) // 2
    states = {state_of(play(seed), step, 0) for seed in SEEDS for step in range(20)}
    assert states == set(BlockState)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_part_of_the_rows_the_samples_still_count_all_holders(seed: int) -> None:
    run = play(seed)
    snapshot = run.snapshot(row_stride=2)
    for life in as_dicts(BlockLives.read(snapshot)):
        seen = range(life["begin"], life["end"])
        assert life["peak_refs"] == max(len(run.holders[step][life["block"]]) for step in seen)


def test_a_row_that_was_preempted_has_two_residencies() -> None:
    run = play(0)
    snapshot = run.snapshot()
    of = Holdings.of
    holdings = of(
        row=[7, 7, 7, 8, 7],
        sample=[0] * 5,
        position=[0, 1, 0, 0, 1],
        block=[0, 1, 2, 3, 4],
        begin=[1, 3, 9, 9, 10],
        end=[5, 5, 10, 30, 12],
        found=[False] * 5,
    )
    snapshot = replace(snapshot, holdings=holdings)
    assert residencies(snapshot, 7) == [(1, 5), (9, 12)]
    assert residencies(snapshot, 8) == [(9, 30)]
    assert residencies(snapshot, 9) == []


def test_a_block_that_took_the_place_of_a_shared_one_is_a_copy() -> None:
    """Sample 1 writes first; the sample that came again after a preemption copied nothing."""
    holdings = Holdings.of(
        row=[7, 7, 7, 7, 7, 7, 7, 8, 8],
        sample=[0, 0, 1, 1, 1, 0, 0, 0, 0],
        position=[0, 1, 0, 1, 1, 0, 1, 0, 0],
        block=[0, 1, 0, 1, 2, 3, 4, 5, 5],
        begin=[1, 1, 2, 2, 4, 7, 7, 7, 7],
        end=[6, 6, 9, 4, 9, 9, 9, 7, 9],
        found=[False, False, True, True, False, False, False, False, False],
    )
    snapshot = replace(play(0).snapshot(), holdings=holdings)

    def copied(step: int) -> list[tuple[int, int]]:
        return [
            (table["sample"], block["logical"])
            for table in block_tables(snapshot, 7, Moment.of(snapshot, step))
            for block in table["blocks"]
            if block["copied"]
        ]

    assert (copied(3), copied(5), copied(7)) == ([], [(1, 1)], [(1, 1)])


def test_the_slot_of_the_last_token_is_block_times_size_plus_its_place() -> None:
    run = play(3)
    snapshot = run.snapshot()
    tables = [
        table
        for step in range(run.num_steps)
        for row in range(30)
        for table in block_tables(snapshot, row, Moment.of(snapshot, step))
    ]
    assert len(tables) > 10
    for table in tables:
        last, token = table["blocks"][-1], table["last_token"]
        assert table["tokens"] == last["logical"] * BLOCK_SIZE + last["tokens"]
        assert token is not None
        assert token["slot"] == last["physical"] * BLOCK_SIZE + last["tokens"] - 1


def test_lifetimes_are_counted_in_classes_that_double() -> None:
    lives = BlockLives.of(
        block=range(10),
        begin=[0] * 10,
        end=[0, 1, 2, 3, 3, 4, 7, 8, 15, 16],
        position=[0] * 10,
        rows=[1] * 10,
        hits=[0] * 10,
        peak_refs=[1] * 10,
    )
    found = lifetimes(lives)
    classes = zip(found["least"], found["most"], strict=True)
    assert dict(zip(classes, found["counts"], strict=True)) == {
        (0, 0): 1,
        (1, 1): 1,
        (2, 3): 3,
        (4, 7): 2,
        (8, 15): 2,
        (16, 31): 1,
    }
    assert (found["num_lives"], found["median"]) == (10, 3)
    assert (found["p90"], found["longest"]) == (15, 16)
    assert set(map(str, lifetimes(BlockLives.of()).values())) == {"0", "[]"}


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        ("first", 0),
        ("last", 18),
        ("0", 0),
        ("2", 0),
        ("3", 3),
        ("17", 15),
        ("999999", 18),
        ("0%", 0),
        ("50%", 9),
        ("100%", 18),
        ("1.2s", 9),
        ("0s", 0),
        ("99s", 18),
    ],
)
def test_a_moment_is_the_last_sample_that_is_not_later(asked: str, step: int) -> None:
    snapshot = play(1).snapshot(every=3)
    moment = Moment.find(snapshot, asked)
    assert moment is not None
    assert (moment.step, moment.time_s, moment.asked) == (step, step / 8, asked)


def test_the_peak_is_the_first_sample_in_which_most_blocks_are_held() -> None:
    for seed in SEEDS:
        run = play(seed)
        held = [sum(map(bool, holders)) for holders in run.holders]
        moment = Moment.find(run.snapshot(), "peak")
        assert moment is not None
        assert moment.step == held.index(max(held))


@pytest.mark.parametrize("asked", ["", "now", "-1", "1.5", "101%", "5 s", "٣", "1e3", "9" * 40])
def test_a_moment_that_is_none_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="at"):
        Moment.find(play(1).snapshot(), asked)


def test_a_snapshot_without_samples_has_no_moment() -> None:
    run = SmallRun(num_blocks=3, num_steps=0)
    snapshot = run.snapshot()
    assert Moment.find(snapshot, "peak") is None
    assert len(BlockLives.read(snapshot)) == 0
    assert state_counts(snapshot.samples).shape == (0, 4)


def test_the_prefixes_that_save_most_keep_their_places_in_the_tree() -> None:
    nodes = PrefixNodes.of(
        parent=[-1, 0, 1, 1, -1, 4],
        start=[0, 10, 20, 20, 0, 8],
        end=[10, 20, 40, 30, 8, 16],
        rows=[9, 7, 3, 4, 2, 2],
        row=[0, 1, 2, 3, 10, 10],
        saved=[80, 5, 60, 90, 1, 8],
    )
    shown = top_prefixes(nodes, 4, 2)
    assert [
        (each["parent"], each["start"], each["tokens"], each["tokens_saved"]) for each in shown
    ] == [
        (None, 0, 10, 80),
        (0, 10, 40, 60),  # the node between is not listed
        (0, 10, 30, 90),
        (None, 0, 16, 8),
    ]
    everything = top_prefixes(nodes, 100, 2)
    assert [each["parent"] for each in everything] == [None, 0, 1, 1, None, 4]
    assert [each["row"] for each in everything] == nodes.row.tolist()
    assert top_prefixes(nodes, 0, 2) == []
    assert np.array_equal(nodes.saved, [each["tokens_saved"] for each in everything])
