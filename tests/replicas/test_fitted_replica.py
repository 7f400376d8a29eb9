"""A replica has the seats that one engine would have on its device, for the same file."""

from dataclasses import dataclass, fields
from typing import Any

import pytest

from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.planning.planner import PartPlanner
from pagedrun.paged.planning.pool_sizing import PoolDemand
from pagedrun.paged.planning.sizing import MAX_NUM_SEQS, MIN_NUM_SEQS
from pagedrun.paged.planning.windows import WindowQueue
from pagedrun.paged.replicas.part_engine import LoadedPartEngine
from pagedrun.paged.replicas.replica_messages import RunTerms
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.support.engines import load_engine

GB = 10**9


@dataclass(frozen=True)
class OwnMemory(Device):
    """The processor, which says that it has so much memory of its own."""

    @property
    def memory_bytes(self) -> int | None:
        return 24 * GB


def rows(num_tokens: int) -> list[Request]:
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    return [Request(row, (6 + row, *[5] * num_tokens), params) for row in range(3)]


def replica_seats(engine: Engine, requests: list[Request]) -> dict[str, Any]:
    """Return the settings of a replica that runs the rows, which were planned elsewhere."""
    replica = LoadedPartEngine(engine, "here", "0" * 64)
    basis = replica.offer().basis
    planner = basis.planner(engine.config)
    plan = planner.window(requests, has_next=False).plan
    feed = WindowQueue(lambda: None, lambda: None)
    feed.put(PartPlanner().window(plan.part(0, len(plan))))
    feed.end()
    demand = PoolDemand.of(plan, basis.windows, is_whole=False)
    run = replica.start(feed, RunTerms(demand, planner.reserved_len(requests)), lambda record: None)
    assert len(list(run)) == len(requests)
    return run.report()["config"]


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks", "seats"),
    [(200, 700, MIN_NUM_SEQS), (200, 4000, 256), (10, 4000, MAX_NUM_SEQS)],
)
def test_seats_are_fitted_to_plan_and_device(num_tokens: int, num_blocks: int, seats: int) -> None:
    device = choose_device("cpu")
    own = OwnMemory(
        **{each.name: getattr(device, each.name) for each in fields(device) if each.init}
    )
    config = EngineConfig.fitting(model=demo_model_folder(), block_size=16, num_blocks=num_blocks)
    engine = load_engine(config, device=own)
    requests = rows(num_tokens)
    run = engine.start(requests)
    list(run)
    wanted = run.report()["config"]
    found = replica_seats(engine, requests)
    assert found == wanted
    assert found["max_num_batched_tokens"] == 8192
    assert found["max_num_seqs"] == seats
