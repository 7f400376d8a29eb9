"""`bench prefix`, and engines whose rows read alone."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from pagedrun.kernels.attention_inputs import PrefixState
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.paged.bench.contender import EngineContender, reading_alone
from pagedrun.paged.bench.op_timer import OpTimer
from pagedrun.paged.bench.prefix import Mode, PrefixBench
from pagedrun.paged.bench.result import Budget
from pagedrun.paged.bench.workload import Workload
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.values.errors import UsageError
from tests.bench.tiny import FLOAT32, TINY, silent


class TestReadingAlone:
    def test_alone_every_token_is_read_by_the_decode_kernel(self) -> None:
        timer = OpTimer(CpuBackend())
        engine = TINY.engine(timer.kernels, **FLOAT32)
        workload = Workload(rows=4, shared=512, unique=8, output=4)
        ratio = {}
        for name, each in (("once", engine), ("alone", reading_alone(engine))):
            figures, ratio[name] = EngineContender(name, each, timer).run(workload.requests(512))
            assert figures.hit_rate > 0.7
        assert ratio["once"] == ratio["alone"]  # float32: rounding changes no token

    def test_what_the_decode_kernel_is_given(self) -> None:
        seen: list[PrefixState | None] = []

        class Watched(CpuBackend):
            def decode_attention(self, *args: Any) -> Tensor:
                seen.append(args[6])
                return CpuBackend.decode_attention(*args)

        timer = OpTimer(Watched())
        engine = TINY.engine(timer.kernels, **FLOAT32)
        requests = Workload(rows=32, shared=512, unique=8, output=6).requests(512)
        alone = EngineContender("alone", reading_alone(engine), timer)
        alone.run(requests)
        assert seen
        assert all(prefix is None for prefix in seen)
        assert "prefix_attention" not in timer.calls
        seen.clear()
        EngineContender("once", engine, timer).run(requests)
        assert any(prefix is not None for prefix in seen)
        assert timer.calls["prefix_attention"] > 0

    def test_no_captured_step_of_rows_that_read_together_is_replayed(self) -> None:
        """Contenders on a GPU have one pool, and so one set of graphs."""
        device = replace(choose_device("cpu"), graphs=True)
        engine = TINY.engine(**FLOAT32)
        memory = PoolMemory(engine.loaded.model, engine.loaded.sampler, device)
        once = Engine(engine.config, replace(engine.loaded, device=device, memory=memory))
        requests = Workload(rows=32, shared=512, unique=8, output=6).requests(512)
        shared = []
        for engine in (once, reading_alone(once)):
            run = engine.start(requests)
            assert all(completion.error is None for completion in run)
            shared.append([shape.num_shared_partitions for shape in run.captured_shapes])
        assert shared[0]
        assert all(shared[0])
        assert shared[1]
        assert not any(shared[1])

    def test_warming_up_asks_for_no_samples_to_read_together(self) -> None:
        timer = OpTimer(CpuBackend())
        reading_alone(TINY.engine(timer.kernels, **FLOAT32)).warm_up()
        assert "prefix_attention" not in timer.calls


class TestPrefix:
    def test_every_point_in_every_mode(self) -> None:
        bench = PrefixBench(TINY, (64, 0), (3, 1), unique=4, output=3, repeat=1, flags=FLOAT32)
        result: Any = bench.run(silent)
        points = result["points"]
        places = [(point["prefix"], point["group"]) for point in points]
        assert places == [(0, 1), (0, 3), (64, 1), (64, 3)]
        for point in points:
            assert list(point["modes"]) == [mode.value for mode in Mode]
            assert set(point["ratios"]) == {"once_over_reread", "caching_over_none"}
            assert point["skipped"] == []
            for mode in point["modes"].values():
                assert 0 < mode["decode_attention_s"].median < mode["decode_step_s"].median
        hit_rates = {mode: each["hit_rate"] for mode, each in points[-1]["modes"].items()}
        assert hit_rates[Mode.ONCE] == hit_rates[Mode.REREAD] == pytest.approx(128 / 204)
        assert hit_rates[Mode.UNCACHED] == 0.0

    def test_what_does_not_fit_the_budget_is_named(self) -> None:
        bench = PrefixBench(TINY, (0, 64), (2,), budget_s=1e-9, flags=FLOAT32)
        for point in bench.run(silent)["points"]:
            assert point["modes"] == {}
            assert [each["mode"] for each in point["skipped"]] == [mode.value for mode in Mode]

    def test_the_budget_goes_by_the_largest_piece_of_work(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [7.0]
        monkeypatch.setattr("pagedrun.paged.bench.result.perf_counter", lambda: now[0])
        budget = Budget(100.0)
        assert budget.seconds_for(5.0) == 0.0
        budget.note(1.0, 50.0)
        budget.note(10.0, 20.0)
        budget.note(2.0, 90.0)
        assert budget.too_much({Mode.ONCE: 5.0, Mode.REREAD: 6.0, Mode.UNCACHED: 4.0}) == {
            Mode.REREAD: pytest.approx(12.0)  # more than a tenth
        }
        assert budget.seconds_for(30.0) == pytest.approx(60.0)
        now[0] += 30.0
        assert budget.left == 70.0

    @pytest.mark.parametrize(
        ("lengths", "groups", "flag"), [((), (1,), "prefix"), ((1,), (), "group")]
    )
    def test_refuses_no_points(
        self, lengths: tuple[int, ...], groups: tuple[int, ...], flag: str
    ) -> None:
        with pytest.raises(UsageError, match=flag):
            PrefixBench(TINY, lengths, groups)
