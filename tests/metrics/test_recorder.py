"""The recording of a run: what it says of every block is what the pool's own books said."""

import random
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.run import DEFAULT_POLICY, Run, RunPolicy
from pagedrun.paged.metrics.block_tables import BlockLives
from pagedrun.paged.metrics.recorder import Recorder
from pagedrun.paged.metrics.snapshot import PrefixNodes, Snapshot
from pagedrun.paged.metrics.snapshot_file import MAX_COUNT, read_snapshot
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.planner import prefix_nodes
from pagedrun.paged.scheduling.scheduler_state import ResidencyLog
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.admit_all import AdmitAll
from tests.support.made_step import made_sequence
from tests.support.tiny_models import tiny_engine

SIZE = 16
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "few-seats": {"max_num_seqs": 3, "max_num_batched_tokens": 50},
    "swapped": {"num_blocks": 15, "preemption_mode": "swap"},
    "recomputed": {"num_blocks": 15, "preemption_mode": "recompute"},
    "uncached": {"prefix_caching": False, "num_blocks": 40},
}


def requests() -> list[Request]:
    """Two nested prefixes, samples that part, a duplicate, a row that is refused, and beams."""
    rng = random.Random(3)
    shared = [rng.randrange(256) for _ in range(100)]
    made = []
    for index in range(30):
        own = [rng.randrange(256) for _ in range(rng.randrange(1, 30))]
        params = SamplingParams(
            max_tokens=rng.choice([1, 5, 40]),
            temperature=1.0,
            n=1 + index % 3 % 2 * 2,
            seed=index,
            ignore_eos=True,
        )
        made.append(Request(index, (*shared[: rng.choice([0, 52, 100])], *own), params))
    made.append(Request(30, made[29].prompt_token_ids, made[29].params))
    made.append(Request(31, (9999,), SamplingParams()))
    for index, width in ((32, 2), (33, 3)):
        params = SamplingParams(max_tokens=20, n=2, beam_width=width, ignore_eos=True)
        made.append(Request(index, tuple(shared[: 10 * width]), params))
    return made


def run(
    policy: RunPolicy = DEFAULT_POLICY, **config: Any
) -> tuple[Run, dict[int, tuple[list[int], list[int]]]]:
    """Run to the end; return the run and, by step, what the pool's books said after it."""
    engine = tiny_engine(dtype="float32", block_size=SIZE, **config)
    books: dict[int, tuple[list[int], list[int]]] = {}
    made = Engine(engine.config, engine.loaded, policy).start(
        requests(),
        hooks=RunHooks(
            lambda record: books.__setitem__(
                record.step, (list(made.pool.ref_counts), list(made.pool.fills))
            )
        ),
    )
    assert len(list(made)) == 34
    return made, books


def ref_counts_of(snapshot: Snapshot, step: int) -> list[int]:
    """Count the holders of every block at a step, from the holdings alone."""
    counts = [0] * snapshot.num_blocks
    holdings = snapshot.holdings
    for entry in range(len(holdings)):
        if holdings.begin[entry] <= step < holdings.end[entry]:
            counts[holdings.block[entry]] += 1
    return counts


@pytest.fixture(scope="module", params=SETTINGS)
def recorded(request: pytest.FixtureRequest) -> tuple[Run, dict[int, tuple[list[int], list[int]]]]:
    # Where blocks are few more are let in than there is room for.
    is_small = "num_blocks" in SETTINGS[request.param]
    policy = RunPolicy(AdmitAll) if is_small else DEFAULT_POLICY
    return run(policy, **SETTINGS[request.param])


Recorded = tuple[Run, dict[int, tuple[list[int], list[int]]]]


def test_blocks_are_those_of_the_pool_at_every_step(recorded: Recorded) -> None:
    made, books = recorded
    snapshot = made.snapshot()
    samples = snapshot.samples
    assert samples.steps.tolist() == list(books) == list(range(1, snapshot.num_steps + 1))
    for place, step in enumerate(books):
        assert samples.ref_counts[place].tolist() == books[step][0]
        assert samples.fills[place].tolist() == books[step][1]
        assert ref_counts_of(snapshot, step) == books[step][0]
    assert not samples.ref_counts[-1].any()


def test_timeline_and_report_agree_with_the_blocks(recorded: Recorded) -> None:
    made, _ = recorded
    snapshot, report = made.snapshot(), made.report()
    samples = snapshot.samples
    held = samples.ref_counts > 0
    for place, record in enumerate(report["timeline"]):
        assert samples.times[place] == record["t"]
        assert held[place].sum() == record["blocks_used"]
        assert (samples.ref_counts[place] > 1).sum() == record["blocks_shared"]
        assert (~held[place] & (samples.fills[place] > 0)).sum() == record["blocks_cached"]
        assert samples.fills[place][held[place]].sum() == record["tokens"]
    assert snapshot.num_blocks == report["kv"]["num_blocks"]
    preemptions = snapshot.preemptions
    assert preemptions.swapped.sum() == report["preemptions"]["swap"]
    assert (~preemptions.swapped).sum() == report["preemptions"]["recompute"]
    assert snapshot.lengths.prompts.sum() == 33
    assert (snapshot.lengths.answers * snapshot.lengths.tokens).sum() == report["tokens"][
        "generated"
    ]
    assert (snapshot.lengths.prompts * snapshot.lengths.tokens).sum() == report["tokens"]["prompt"]


def test_preemptions_say_why(recorded: Recorded) -> None:
    """The blocks given up are those that the row held; it was too little that was free."""
    made, _ = recorded
    preemptions, holdings = made.snapshot().preemptions, made.snapshot().holdings
    if made.pool.num_blocks == 15:
        assert len(preemptions)
    for entry in range(len(preemptions)):
        step, row, sample = (
            int(getattr(preemptions, name)[entry]) for name in ("step", "row", "sample")
        )
        assert preemptions.free[entry] < preemptions.needed[entry]
        gave_up = (holdings.row == row) & (holdings.sample == sample) & (holdings.end == step)
        assert gave_up.sum() >= preemptions.blocks[entry] > 0
        assert preemptions.tokens[entry] <= preemptions.blocks[entry] * SIZE


def test_found_blocks_are_those_that_somebody_had_before(recorded: Recorded) -> None:
    made, _ = recorded
    holdings = made.snapshot().holdings
    first = holdings.where(~holdings.found)
    assert len(first) < len(holdings) or not made._config.prefix_caching
    for entry in np.flatnonzero(holdings.found):
        before = (first.block == holdings.block[entry]) & (first.begin <= holdings.begin[entry])
        assert before.any()


def test_a_block_lives_from_its_filling_to_its_last_release(recorded: Recorded) -> None:
    """It is never empty in between, and whenever somebody holds it that is one of its lives."""
    made, books = recorded
    lives = BlockLives.read(made.snapshot())
    for step, (ref_counts, fills) in books.items():
        alive = lives.where((lives.begin <= step) & (step < lives.end))
        assert len(set(alive.block.tolist())) == len(alive)
        held = {block for block, count in enumerate(ref_counts) if count}
        stored = {block for block, count in enumerate(fills) if count}
        assert held <= set(alive.block.tolist()) <= held | stored
        for block, peak in zip(alive.block.tolist(), alive.peak_refs.tolist(), strict=True):
            assert ref_counts[block] <= peak
    assert lives.hits.sum() == made.snapshot().holdings.found.sum()


def test_a_snapshot_is_read_as_it_was_written(recorded: Recorded, tmp_path: Any) -> None:
    snapshot = recorded[0].snapshot()
    path = tmp_path / "out.snapshot.npz"
    path.write_bytes(snapshot.to_bytes())
    again = read_snapshot(path)
    assert set(snapshot.branchings.row.tolist()) == {32, 33}
    for name in ("holdings", "prefixes", "branchings"):
        table = getattr(snapshot, name)
        for column, numbers in table.columns().items():
            assert np.array_equal(getattr(getattr(again, name), column), numbers)
    assert np.array_equal(again.samples.ref_counts, snapshot.samples.ref_counts)
    assert (again.num_steps, again.row_stride) == (snapshot.num_steps, 1)


def test_blocks_that_are_still_held_are_held_in_the_last_step() -> None:
    """A history that ends before its rows do."""
    pool, log = BlockPool(8, SIZE), ResidencyLog()
    recorder = Recorder(pool, log)
    log.step = 3
    log.begin(made_sequence((1,) * 40, blocks=pool.allocate(3) or ()), num_found=0)
    recorder.note_step(3, 0.1)
    snapshot = recorder.snapshot(bytes_per_token=8)
    assert ref_counts_of(snapshot, 3) == list(pool.ref_counts)


@pytest.mark.parametrize("seed", range(5))
def test_the_peak_is_kept_whatever_else_is_not(seed: int) -> None:
    rng, pool = random.Random(seed), BlockPool(40, SIZE)
    recorder = Recorder(pool, ResidencyLog(), max_samples=4)
    held: list[int] = []
    books: dict[int, list[int]] = {}
    for step in range(1, 100):
        if rng.random() < 0.5:
            held += pool.allocate(min(rng.randrange(6), pool.num_free)) or []
        else:
            rng.shuffle(held)
            gone, held = held[:4], held[4:]
            pool.release(gone)
        recorder.note_step(step, 0.1 * step)
        books[step] = list(pool.ref_counts)
    samples = recorder.snapshot(bytes_per_token=8).samples
    assert len(samples) <= 5
    assert samples.steps.tolist() == sorted(set(samples.steps.tolist()))
    most = max(sum(count > 0 for count in counts) for counts in books.values())
    assert (samples.ref_counts > 0).sum(axis=1).max() == most
    for place, step in enumerate(samples.steps.tolist()):
        assert samples.ref_counts[place].tolist() == books[step]


def test_a_few_rows_are_kept_whole_where_all_are_too_many() -> None:
    whole, bounded = ResidencyLog(), ResidencyLog(max_holdings=40)
    for index in range(30):
        sequence = made_sequence((1,) * 50, index=index)
        sequence.block_table = [index, index + 1, index + 2]
        for log in (whole, bounded):
            log.step = index
            log.begin(sequence, num_found=1)
        sequence.table.kv_groups[0].append_one(sequence.row_index, 40)
        sequence.table.kv_groups[0].replace(sequence.row_index, 1, 50)
        for log in (whole, bounded):
            log.step = index + 1
            log.replace(sequence, 1)
            log.grow(sequence)
            log.end(sequence)
    assert whole.row_stride == 1
    assert bounded.row_stride == 4
    kept = {residency.row: residency for residency in bounded}
    assert set(kept) == set(range(0, 30, 4))
    for residency in whole:
        if residency.row in kept:
            assert kept[residency.row] == residency


def test_one_row_with_too_many_holdings_is_kept_whole_and_alone() -> None:
    log = ResidencyLog(max_holdings=8)
    for index in (0, 1) * 40:
        log.step += 1
        sequence = made_sequence((1,) * 9, blocks=(0, 1, 2), index=index)
        log.begin(sequence, num_found=0)
        log.branch(index, forked=1, died=1, freed=0)
        log.end(sequence)
    assert [each.row for each in log] == [each.row for each in log.branchings] == [0] * 40
    assert log.row_stride <= MAX_COUNT  # what a snapshot may have


def test_the_best_of_a_tree_still_are_a_tree() -> None:
    """A node that is left out gives its tokens to the one below it."""
    nodes = PrefixNodes.of(
        parent=[-1, 0, 1, -1, 3],
        start=[0, 16, 20, 0, 32],
        end=[16, 20, 64, 32, 48],
        rows=[9, 5, 4, 2, 2],
        row=[0, 0, 1, 7, 8],
        saved=[128, 0, 96, 32, 0],
    )
    best = nodes.best(10)
    assert best.parent.tolist() == [-1, 0, -1]
    assert list(zip(best.start.tolist(), best.end.tolist(), strict=True)) == [
        (0, 16),
        (16, 64),
        (0, 32),
    ]
    assert nodes.best(1).saved.tolist() == [128]
    both = nodes.best(1).joined(best)
    assert both.parent.tolist() == [-1, -1, 1, -1]


def test_the_tree_of_a_plan() -> None:
    asked = requests()[:30]
    plan = Plan(asked, PlanRules(SIZE))
    log = ResidencyLog()
    engine_pool = tiny_engine(dtype="float32").start([asked[0]]).pool
    recorder = Recorder(engine_pool, log)
    recorder.note_prefixes(prefix_nodes(plan))
    recorder.note_prefixes(prefix_nodes(plan))
    prefixes = recorder.snapshot(8).prefixes
    assert prefixes.saved.sum() == 2 * plan.sharing.block_hit_tokens
    half = len(prefixes) // 2
    for entry in range(half):
        end, row = int(prefixes.end[entry]), int(prefixes.row[entry])
        prompt = asked[row].prompt_token_ids[:end]
        begins = sum(each.prompt_token_ids[:end] == prompt for each in asked)
        assert begins == prefixes.rows[entry]
        parent = int(prefixes.parent[entry])
        assert parent < entry
        assert prefixes.start[entry] == (prefixes.end[parent] if parent >= 0 else 0)
