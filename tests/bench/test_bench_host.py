"""bench host: the kernels cost nothing, and everything else is what a run does."""

from typing import Any

from pagedrun.paged.bench.costless import CostlessBackend
from pagedrun.paged.bench.host import ROWS_PER_SEAT, HostBench
from pagedrun.paged.bench.workload import Lengths


def test_every_row_gets_its_tokens() -> None:
    bench = HostBench(seats=(4, 8), shared=40, unique=5, output=Lengths(3, 9), repeat=2)
    said: list[str] = []
    result: Any = bench.run(said.append)
    small, large = result["points"]
    assert [small["rows"], large["rows"]] == [4 * ROWS_PER_SEAT, 8 * ROWS_PER_SEAT]
    for point in (small, large):
        assert 3 * point["rows"] <= point["generated_tokens"] <= 9 * point["rows"]
        assert point["tokens_per_s"].count == 2
        assert point["admission_step_s"].median > 0
    assert "8 rows at a time" in said[-1]


def test_steps_as_on_a_gpu_are_replayed_and_counted() -> None:
    lengths = Lengths(20, 40)
    bench = HostBench(seats=(8,), shared=300, unique=5, output=lengths, as_gpu=True)
    result: Any = bench.run(lambda _: None)
    [point] = result["points"]
    asked, steps = point["asked"], point["steps"]
    assert result["as_gpu"]
    assert asked.captures >= 1
    assert asked.replays > 0.8 * steps
    assert asked.replays + asked.decodes <= steps
    assert 0 < asked.prefills < 0.5 * steps
    assert asked.copies < 4 * steps


def test_rows_that_wait_for_others_begin_in_fewer_steps() -> None:
    def prefills(share: float) -> int:
        bench = HostBench(
            seats=(16,), shared=40, unique=5, output=Lengths(10, 60), as_gpu=True,
            refill_share=share,
        )  # fmt: skip
        result: Any = bench.run(lambda _: None)
        count: int = result["points"][0]["asked"].prefills
        return count

    assert prefills(0.25) < 0.6 * prefills(0.0)


def test_what_costs_nothing_gives_the_right_shapes() -> None:
    from pagedrun.paged.bench.workload import BenchModel
    from pagedrun.paged.values.request import Request
    from pagedrun.paged.values.sampling_params import SamplingParams

    model = BenchModel.from_shape("tiny", 1)
    engine = model.engine(CostlessBackend(model.config.vocab_size), dtype="float32", device="cpu")
    params = SamplingParams(max_tokens=7, temperature=1.0, n=3)
    [completion] = engine.start([Request(0, (1, 2, 3), params)])
    assert [len(output.token_ids) for output in completion.outputs] == [7, 7, 7]
    assert len({output.token_ids for output in completion.outputs}) == 3
