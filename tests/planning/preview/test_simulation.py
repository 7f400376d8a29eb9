"""The simulation on its own; tests/job/test_plan_file.py holds it against runs of a model."""

from dataclasses import asdict, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from pagedrun.paged.cache.block_pool import PoolCounts
from pagedrun.paged.cache.cache_spec import KVCacheSpec, PoolShape
from pagedrun.paged.planning.forecast import BlockSizes, best_block_size
from pagedrun.paged.planning.forecast_sections import BlockSizeFigures
from pagedrun.paged.planning.plan import Plan, PlanRules
from pagedrun.paged.planning.simulation import (
    Simulation,
    Simulator,
    common_with_previous,
    read_by_chunks,
    read_by_tokens,
)
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


def make_plan(seed: int, *, prefix_caching: bool = True, most_samples: int = 3) -> Plan:
    draw = np.random.default_rng(seed)
    templates = [tuple(draw.integers(9, size=draw.integers(5, 120)).tolist()) for _ in range(6)]
    requests = []
    for index in range(100):
        prompt = templates[draw.integers(6)] + tuple(draw.integers(9, size=draw.integers(1, 40)))
        params = SamplingParams(
            max_tokens=int(draw.integers(1, 90)),
            n=int(draw.choice([1, 1, 1, most_samples])),
            temperature=1.0,
        )
        requests.append(Request(index, tuple(map(int, prompt)), params))
    return Plan(requests, PlanRules(16, prefix_caching=prefix_caching))


SPEC = KVCacheSpec(num_layers=4, num_kv_heads=1, head_dim=2, dtype="float32")  # 64 bytes a token
S = TypeVar("S", bound=Simulator)


def make_simulator(kind: type[S], plan: Plan, num_blocks: int, **settings: Any) -> S:
    """Return a simulator; `settings` are its own, and fields of `EngineConfig`."""
    names = EngineConfig.__dataclass_fields__.keys() & settings.keys()
    flags = {name: settings.pop(name) for name in names}
    config = EngineConfig(
        model=Path("."), **{"max_num_seqs": 12, "max_num_batched_tokens": 100, **flags}
    )
    sizes = {None: num_blocks, **settings.pop("windowed", {})}
    shapes = PoolShape.of_all([replace(SPEC, window=each) for each in sizes], [*sizes.values()])
    return kind(
        [plan],
        config,
        shapes=shapes,
        bytes_read={None: 2, 40: 1},
        max_model_len=250,
        **settings,
    )


def simulate(plan: Plan, num_blocks: int, **settings: Any) -> Simulation:
    return make_simulator(Simulator, plan, num_blocks, **settings).run()


def without_timeline(simulation: Simulation) -> dict[str, Any]:
    fields = asdict(simulation)
    return {
        name: value.tolist() if name == "at_peak" else value
        for name, value in fields.items()
        if name != "timeline"
    }


class CountedSimulator(Simulator):
    """Counts the steps that it does one by one, and proves that the books balance."""

    num_single_steps = 0

    def _step(self) -> None:
        self.num_single_steps += 1
        super()._step()

    def _record_step(self) -> None:
        self._scheduler.check()
        super()._record_step()

    @property
    def pool_counts(self) -> list[PoolCounts]:
        return [group.pool.counts for group in self._scheduler.groups]


class OneByOne(CountedSimulator):
    """Does every step by itself."""

    def _num_uneventful_steps(self) -> int:
        return 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("num_blocks", "flags"),
    [
        *product([40], [{}, {"prefix_caching": False}, {"swap_space_bytes": 0}]),
        (60, {}),
        (300, {}),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in product([60, 300], [{"prefix_caching": False}, {"swap_space_bytes": 0}])
        ),
        (300, {"windowed": {40: 300}}),
        (40, {"staggers": True, "max_num_seqs": 10}),
        (60, {"windowed": {20: 30, 1: 20}}),  # so few that a window makes sequences give way
    ],
    ids=str,
)
def test_many_steps_at_once_are_the_same_as_one_by_one(
    num_blocks: int, flags: dict[str, Any], seed: int
) -> None:
    """A small timeline is what lets steps be skipped at all."""
    plan = make_plan(seed, prefix_caching=flags.get("prefix_caching", True))
    simulators = [
        make_simulator(kind, plan, num_blocks, max_records=20, **flags)
        for kind in (CountedSimulator, OneByOne)
    ]
    quick, slow = (each.run() for each in simulators)
    assert without_timeline(quick) == without_timeline(slow)
    assert quick.timeline == slow.timeline
    assert simulators[0].pool_counts == simulators[1].pool_counts
    num_quick, num_slow = (each.num_single_steps for each in simulators)
    assert num_slow == slow.num_steps
    assert num_blocks < 300 or num_quick < 0.9 * quick.num_steps


def test_every_answer_is_as_long_as_it_may_be() -> None:
    plan = make_plan(1)
    simulation = simulate(plan, 300)
    assert simulation.generated_tokens == int((plan.num_samples * plan.max_tokens).sum())
    assert simulation.counts.prompt_tokens == int(plan.tree.num_tokens.sum())
    assert simulation.max_running == 12
    assert simulation.kv["peak_blocks"] <= 300


def test_only_the_first_rows_if_asked() -> None:
    simulation = simulate(make_plan(2), 300, max_rows=30)
    assert simulation.num_rows == 30
    assert simulation.timeline[-1].total == 30


def test_what_rows_between_have_in_common() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        common = draw.integers(20, size=40).astype(np.int32)
        places = np.sort(draw.choice(40, size=draw.integers(1, 12), replace=False))
        expected = [int(common[a + 1 : b + 1].min()) for a, b in pairwise(places)]
        assert common_with_previous(common, places).tolist() == expected


@pytest.mark.parametrize("window", [None, 1, 2, 7, 100])
def test_reads_are_the_positions_that_a_query_sees(window: int | None) -> None:
    spans = [(start, end) for start in range(12) for end in range(start + 1, 13)]
    starts, ends = np.array(spans).T

    def seen(query: int) -> set[int]:
        return set(range(max(query - (window or 10**9) + 1, 0), query + 1))

    one_by_one = sum(len(seen(query)) for start, end in spans for query in range(start, end))
    assert read_by_tokens(starts, ends, window) == one_by_one
    at_once = sum(len(set().union(*map(seen, range(start, end)))) for start, end in spans)
    assert read_by_chunks(starts, ends, window) == at_once
    nothing = np.zeros(0, dtype=np.int64)
    assert read_by_tokens(nothing, nothing, window) == read_by_chunks(nothing, nothing, window) == 0


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_block_sizes_tell_the_simulated_peak_for_the_size_in_force(prefix_caching: bool) -> None:
    for seed in range(4):
        # Without a cache, a sample for which the batch is full computes its prompt again.
        most_samples = 3 if prefix_caching else 1
        plan = make_plan(seed, prefix_caching=prefix_caching, most_samples=most_samples)
        simulation = simulate(plan, 400, prefix_caching=prefix_caching)
        sizes = BlockSizes(16, prefix_caching=prefix_caching)
        sizes.add(plan.tree, 0)
        figures = {each["block_size"]: each for each in sizes.figures(simulation.at_peak, [SPEC])}
        # Rows that begin in one step may each have computed what only the first one publishes.
        assert figures[16]["peak_blocks"] == pytest.approx(simulation.kv["peak_blocks"], rel=0.05)
        assert figures[16]["hit_tokens"] == (plan.sharing.block_hit_tokens if prefix_caching else 0)
        assert figures[8]["hit_tokens"] >= figures[32]["hit_tokens"]
        assert figures[8]["peak_bytes"] <= figures[256]["peak_bytes"]


def figures_of(block_size: int, computed: int, peak_bytes: int) -> BlockSizeFigures:
    return {
        "block_size": block_size,
        "hit_tokens": 0,
        "computed_tokens": computed,
        "peak_blocks": 1,
        "peak_bytes": peak_bytes,
        "tail_waste": 0.0,
    }


def test_best_block_size_is_the_largest_that_costs_next_to_nothing() -> None:
    sizes = [figures_of(8, 100, 1000), figures_of(16, 104, 1040), figures_of(32, 120, 1045)]
    assert best_block_size(sizes, generated_tokens=0)["block_size"] == 16
    # Where answers are most of the work, a few prompt tokens more do not count.
    assert best_block_size(sizes, generated_tokens=1000)["block_size"] == 32
    assert best_block_size(sizes[:1], generated_tokens=0)["block_size"] == 8
