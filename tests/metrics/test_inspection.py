"""What inspect_run tells, held against the played run and against what it was given."""

import json
from typing import Any

import pytest

from pagedrun.paged.metrics.inspection import InspectionQuery, inspect_run
from pagedrun.paged.metrics.saved_report import SavedReport
from pagedrun.paged.metrics.snapshot import Branchings, Preemptions, PrefixNodes, Snapshot
from pagedrun.paged.values.errors import UsageError
from tests.support.small_runs import BLOCK_SIZE, SmallRun, play


def point(**numbers: float) -> dict[str, float]:
    return numbers


REPORT = SavedReport(
    figures={
        "block_size": 16,
        "num_blocks": 10,
        "bytes_per_token": 768,
        "hits": 30,
        "misses": 10,
        "hit_tokens": 480,
        "prompt_tokens": 960,
        "block_copies": 4,
        "swap": 1,
        "recompute": 2,
    },
    timeline=(
        point(t=0.5, step=1, blocks_used=4, blocks_shared=1, blocks_cached=2, tokens=60),
        point(t=0.7, step=3, blocks_used=9, blocks_shared=3, blocks_cached=0, tokens=90),
        point(t=0.9, step=5, blocks_used=2, blocks_shared=0, blocks_cached=1, tokens=20),
    ),
)


def with_tables(snapshot: Snapshot, **tables: Any) -> Snapshot:
    names = type(snapshot).__slots__
    return Snapshot(**{name: getattr(snapshot, name) for name in names} | tables)


def preemptions(**columns: Any) -> Preemptions:
    names = ("step", "row", "sample", "tokens", "blocks", "for_row", "needed", "free", "swapped")
    count = max(len(column) for column in columns.values())
    return Preemptions.of(**{name: columns.get(name, [1] * count) for name in names})


def inspected(
    snapshot: Snapshot | None, report: SavedReport | None, question: InspectionQuery
) -> Any:
    """What a script gets to read."""
    return json.loads(json.dumps(inspect_run(snapshot, report, question), allow_nan=False))


@pytest.mark.parametrize("seed", range(10))
def test_everything_reconciles_at_every_step(seed: int) -> None:
    run = play(seed)
    snapshot = run.snapshot()
    for step in range(run.num_steps):
        rows = tuple({holding.row for holding in run.holdings})
        found = inspected(snapshot, None, InspectionQuery(str(step), rows))
        moment, blocks = found["moment"], found["block_map"]["blocks"]
        assert moment["step"] == step
        names = {"S": "shared", "P": "private", "C": "cached", ".": "free"}
        assert found["block_map"]["letters"] == names
        assert {letter: blocks.count(letter) for letter in names} == {
            letter: moment[name] for letter, name in names.items()
        }
        assert len(blocks) == run.num_blocks
        assert moment["allocated"] == moment["shared"] + moment["private"]
        listed = [block for row in found["rows"] for t in row["tables"] for block in t["blocks"]]
        assert len(listed) == sum(map(len, run.holders[step]))  # every reference is in a table
        held = {row for holders in run.holders[step] for row, _ in holders}
        assert found["rows_held"]["count"] == len(held)
        assert {row["row"] for row in found["rows"] if row["tables"]} == held
        assert found["use_over_time"][step] == moment["allocated"]
        slots = moment["allocated"] * BLOCK_SIZE
        assert moment["utilization"] == (moment["tokens"] / slots if slots else 0)
    peak = inspected(snapshot, None, InspectionQuery())
    assert peak["peak"] == peak["moment"]
    assert peak["moment"]["allocated"] == max(peak["use_over_time"])


def test_statistics_are_those_of_the_report() -> None:
    found = inspected(play(1).snapshot(), REPORT, InspectionQuery())["statistics"]
    assert (found["hits"], found["misses"], found["hit_rate"]) == (30, 10, 0.75)
    assert (found["token_hit_rate"], found["block_copies"], found["evictions"]) == (0.5, 4, None)
    nothing = SavedReport({"hits": 0, "misses": 0, "hit_tokens": 0, "prompt_tokens": 0}, ())
    found = inspected(None, nothing, InspectionQuery())["statistics"]
    assert (found["hit_rate"], found["token_hit_rate"]) == (None, None)


@pytest.mark.parametrize(
    ("asked", "step", "shared", "private", "cached", "free"),
    [
        ("peak", 3, 3, 6, 0, 1),
        ("last", 5, 0, 2, 1, 7),
        ("2", 1, 1, 3, 2, 4),
        ("0.8s", 3, 3, 6, 0, 1),
    ],
)
def test_without_a_snapshot_the_timeline_tells_the_counts(
    asked: str, step: int, shared: int, private: int, cached: int, free: int
) -> None:
    found = inspected(None, REPORT, InspectionQuery(asked))
    moment = found["moment"]
    names = ("step", "shared", "private", "cached", "free")
    assert tuple(moment[name] for name in names) == (step, shared, private, cached, free)
    assert found["peak"]["step"] == 3
    assert found["use_over_time"] == [4, 9, 2]
    assert found["pool"]["pool_bytes"] == 16 * 10 * 768
    for name in ("block_map", "prefixes", "lifetimes", "most_shared", "preemptions"):
        assert found[name] is None
    with pytest.raises(UsageError, match="at"):
        inspected(None, REPORT, InspectionQuery("never"))


def test_without_a_report_preemptions_are_counted_from_the_snapshot() -> None:
    given = preemptions(swapped=[True, False, False])
    found = inspected(with_tables(play(1).snapshot(), preemptions=given), None, InspectionQuery())
    assert (found["statistics"]["swap"], found["statistics"]["recompute"]) == (1, 2)
    assert found["statistics"]["hits"] is None


def test_every_preemption_says_its_cause() -> None:
    given = preemptions(
        step=[41, 1234, 2, 3],
        row=[17, 2, 5, 6],
        sample=[0, 1, 0, 0],
        swapped=[True, False, True, True],
        tokens=[190, 1, 16, 16],
        blocks=[12, 1, 1, 1],
        for_row=[3, 2, -1, 8],
        needed=[2, 1, 0, 3],
        free=[0, 1, 0, 2],
    )
    snapshot = with_tables(play(1).snapshot(), preemptions=given)
    found = inspected(snapshot, None, InspectionQuery(rows=(17,), top=3))
    assert [event["cause"] for event in found["preemptions"]["events"]] == [
        "step 41: row 17 gave up 12 blocks (190 tokens) by swap to host memory, because row 3 "
        "needed 2 blocks and 0 were free",
        "step 1,234: row 2 (sample 1) gave up 1 block (1 token) by dropping and recomputing "
        "them, because it needed 1 block and 1 was free",
        "step 2: row 5 gave up 1 block (16 tokens) by swap to host memory",
    ]
    assert found["preemptions"]["count"] == 4
    (row,) = found["rows"]
    assert [event["step"] for event in row["preemptions"]] == [41]


def test_of_beams_who_forked_and_died_and_what_gave_way_with_them() -> None:
    given = Branchings.of(
        step=[2, 3, 3], row=[1, 0, 1], forked=[1, 2, 1], died=[0, 1, 1], freed=[0, 3, 2]
    )
    gone = preemptions(step=[4, 4], row=[1, 2], sample=[0, 0])
    snapshot = with_tables(play(1).snapshot(), branchings=given, preemptions=gone)
    found = inspected(snapshot, None, InspectionQuery(rows=(1, 2), top=1))
    assert found["beams"] == {"rows": 2, "forked": 4, "died": 2, "freed": 5}
    beams, plain = found["rows"]
    assert beams["beams"] == {
        "forked": 2,
        "died": 1,
        "freed": 2,
        "count": 2,
        "events": [{"step": 2, "row": 1, "forked": 1, "died": 0, "freed": 0}],
    }
    assert plain["beams"] is None
    [cause] = [event["cause"] for event in beams["preemptions"]]
    assert cause.startswith("step 4: row 1 (beam 0, together with the others) gave up 1 block")
    [cause] = [event["cause"] for event in plain["preemptions"]]
    assert cause.startswith("step 4: row 2 gave up 1 block")


def test_prefixes_say_what_they_save_in_bytes() -> None:
    nodes = PrefixNodes.of(
        parent=[-1, 0], start=[0, 4], end=[4, 9], rows=[5, 2], row=[0, 1], saved=[16, 2**62]
    )
    snapshot = with_tables(play(1).snapshot(), prefixes=nodes)
    found = inspected(snapshot, None, InspectionQuery(top=1))["prefixes"]
    assert (found["count"], found["tokens_saved"]) == (2, 2**62 + 16)
    (shown,) = found["top"]
    assert (shown["tokens"], shown["bytes_saved"]) == (9, 2**62 * snapshot.bytes_per_token)


def test_a_row_without_blocks_says_so_and_one_that_was_not_kept_too() -> None:
    snapshot = play(1).snapshot(row_stride=2)
    never, left_out = inspected(snapshot, None, InspectionQuery(rows=(1000, 1001)))["rows"]
    assert (never["is_kept"], never["num_stays"], never["sampled_at"]) == (True, 0, None)
    assert left_out["is_kept"] is False


def test_where_a_row_can_be_seen_a_sample_was_taken() -> None:
    run = play(5)
    snapshot = run.snapshot(every=4)
    seen = 0
    for row in range(max(holding.row for holding in run.holdings)):
        (found,) = inspected(snapshot, None, InspectionQuery(rows=(row,)))["rows"]
        at = found["sampled_at"]
        if at is not None:
            (again,) = inspected(snapshot, None, InspectionQuery(str(at), (row,)))["rows"]
            assert again["tables"]
            seen += 1
    assert seen > 3


def test_a_run_of_no_steps_has_nothing_to_show() -> None:
    found = inspected(SmallRun(3, 0).snapshot(), None, InspectionQuery(rows=(0,)))
    assert (found["moment"], found["block_map"], found["rows_held"]) == (None, None, None)
    assert found["lifetimes"]["num_lives"] == 0
    assert found["most_shared"] == []
