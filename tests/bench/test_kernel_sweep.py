"""The sweep of `bench kernels`: which parts it measures, in which order, and what it leaves out."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pagedrun.paged.bench import kernel_points as op_point
from pagedrun.paged.bench.kernel_points import op_points
from pagedrun.paged.bench.kernel_timing import KernelPoint
from pagedrun.paged.bench.kernels import KernelsBench, KernelSweep
from pagedrun.paged.bench.result import BenchDevice
from pagedrun.paged.execution.device import Device
from pagedrun.paged.values.errors import UsageError
from tests.bench.small_sweep import CPU, SWEEP, TINY, silent


class TestSweep:
    def bench(self, device: Device = CPU, **changes: Any) -> KernelsBench:
        settings: dict[str, Any] = {"sweep": SWEEP, "repeat": 1, "budget_s": 3600.0, **changes}
        return KernelsBench(device, TINY, torch.float32, **settings)

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pagedrun.paged.bench.kernel_timing.COPY_BYTES", {"cpu": 1 << 12})
        monkeypatch.setattr("pagedrun.paged.bench.kernel_timing.MATRIX_SIZE", {"cpu": 16})

    def test_every_part_in_order(self) -> None:
        result: Any = self.bench().run(silent)
        places = {
            part: [tuple(point[size] for size in sizes) for point in result[part]]
            for part, sizes in {
                "decode": ("context", "batch"),
                "prefix": ("prefix", "group"),
                "prefill": ("chunk", "before"),
            }.items()
        }
        assert places == {
            "decode": [(40, 1), (40, 3)],
            "prefix": [(128, 4)],
            "prefill": [(24, 0), (24, 40)],
        }
        assert len(result["ops"]) == len(op_points())
        assert result["skipped"] == []
        assert result["shape"]["num_kv_heads"] == 2
        assert result["roof"].bytes_per_s > 0

    def test_what_does_not_fit_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(BenchDevice, "free_bytes", lambda self: 5000)
        sweep = KernelSweep((8, 40), (1,), (128,), (4,), (24,), (0,), parts=("decode",))
        result = self.bench(sweep=sweep).run(silent)
        assert [point["context"] for point in result["decode"]] == []
        first, second = result["skipped"]
        assert (first["part"], first["context"], first["reason"]) == ("decode", 8, "memory")
        assert second["needed_bytes"] > second["free_bytes"] == 5000

    def test_what_takes_too_long_is_named(self) -> None:
        sweep = KernelSweep((8, 4000), (1,), (128,), (4,), (24,), (0,), parts=("decode",))
        result = self.bench(sweep=sweep, budget_s=1e-9).run(silent)
        assert result["decode"] == []
        assert [(each["context"], each["reason"]) for each in result["skipped"]] == [
            (8, "time"),
            (4000, "time"),
        ]

    def test_a_device_that_fails_does_not_end_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def build(*args: Any) -> KernelPoint:
            raise RuntimeError("out of memory")

        monkeypatch.setitem(op_point.BUILDERS, "add_rms_norm", build)
        sweep = KernelSweep((8,), (1,), (128,), (4,), (24,), (0,), parts=("ops",))
        result = self.bench(sweep=sweep).run(silent)
        assert len(result["ops"]) == len(op_points()) - 1
        (skipped,) = result["skipped"]
        assert (skipped["op"], skipped["failure"]) == (
            "add_rms_norm",
            "RuntimeError: out of memory",
        )

    def test_the_full_one_is_that_of_the_seed(self) -> None:
        full = KernelSweep.full()
        assert (full.contexts[0], full.contexts[-1], len(full.contexts)) == (512, 32_768, 7)
        assert (full.prefixes[0], full.prefixes[-1]) == (128, 16_384)
        assert (full.groups[0], full.groups[-1]) == (8, 1024)
        assert tuple(full.batches) == (1, 8, 32, 128)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"contexts": ()}, "context needs at least one value"),
            ({"batches": (0,)}, "batch 0: it must be at least 1"),
            ({"prefixes": (100,)}, "prefix 100: .* give a multiple of 128"),
            ({"parts": ("decode", "all")}, "only all: choose from decode, prefix, prefill, ops"),
        ],
    )
    def test_refusals(self, changes: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UsageError, match=sentence):
            self.bench(sweep=replace(SWEEP, **changes))

    def test_a_prefix_is_whole_blocks_too(self) -> None:
        with pytest.raises(UsageError, match="multiple of 384"):
            SWEEP.check(48)
