"""What `bench kernels` measures with: data, checks, clocks and rooflines."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.paged.bench.kernel_context import KernelContexts, KernelShape
from pagedrun.paged.bench.kernel_points import (
    DecodePoint,
    OpPoint,
    PrefillPoint,
    PrefixPoint,
    op_points,
)
from pagedrun.paged.bench.kernel_timing import (
    KernelCall,
    KernelPoint,
    Roofline,
    Stopwatch,
    Work,
    difference,
)
from pagedrun.paged.bench.kernels import KernelsBench
from pagedrun.paged.bench.model_shapes import Shape
from pagedrun.paged.bench.result import BenchDevice
from pagedrun.paged.execution.device import choose_device, largest_cpu_cache
from pagedrun.paged.values.errors import UsageError
from tests.bench.small_sweep import CPU, ROOFLINE, SWEEP, TINY, silent


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch(1 << 12)


class TestContext:
    def test_rows_share_a_beginning_and_nothing_else(self, contexts: KernelContexts) -> None:
        made = contexts.make(3, 40, shared_tokens=128, num_queries=3)
        shared, own = made.block_tables[:, :8], made.block_tables[:, 8:]
        assert (shared == shared[0]).all()
        assert own.shape == (3, 3)
        assert sorted([*shared[0].tolist(), *own.flatten().tolist()]) == list(range(17))
        assert made.block_tables.dtype == torch.int32

    def test_no_block_is_like_another(self, contexts: KernelContexts) -> None:
        made = contexts.make(2, 200, num_queries=1)
        blocks = torch.cat([made.key_cache, made.value_cache]).flatten(1)
        assert len({tuple(block) for block in blocks.tolist()}) == len(blocks) == 52

    def test_noise_goes_on_where_it_ends(
        self, contexts: KernelContexts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contexts, "_noise", torch.arange(7.0))
        filled = contexts._filled((2, 3, 3), start=4)
        assert filled.flatten().tolist() == [4, 5, 6, *range(7), *range(7), 0]

    def test_dense_is_the_same_in_order(self, contexts: KernelContexts) -> None:
        made = contexts.make(2, 40, num_queries=1)
        keys, values = made.dense(40)
        assert keys.shape == values.shape == (2, TINY.num_kv_heads, 40, TINY.head_dim)
        block = int(made.block_tables[1, 2])
        assert torch.equal(keys[1, :, 37], made.key_cache[block, :, 5])
        assert torch.equal(values[1, :, 37], made.value_cache[block, :, 5])


@pytest.mark.parametrize(
    "point",
    [
        DecodePoint(40, 3),
        PrefixPoint(256, 5),
        PrefillPoint(24, 0),
        PrefillPoint(24, 40),
        *(OpPoint(each.op, 8) for each in op_points() if each.op != "PackedLinear"),
        OpPoint("PackedLinear", 8),
    ],
    ids=str,
)
@pytest.mark.parametrize("kernels", [CpuBackend(), Backend()], ids=["cpu", "reference"])
def test_all_that_is_timed_computes_the_same(
    contexts: KernelContexts, stopwatch: Stopwatch, point: Any, kernels: Backend
) -> None:
    result = point.build(contexts, kernels).measure(stopwatch, 2, ROOFLINE)
    assert {name: result[name] for name in point.sizes} == dict(point.sizes)
    assert result["ratios"]
    for each in result["contenders"].values():
        assert each["seconds"].count == 2
        assert each["difference"] is None or each["difference"] < 1e-4


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled there, see the test on a GPU")
@pytest.mark.parametrize(
    "point",
    [
        DecodePoint(70, 2),
        PrefixPoint(128, 3),
        PrefillPoint(20, 12),
        *(OpPoint(each.op, 2) for each in op_points() if each.op != "PackedLinear"),
        OpPoint("PackedLinear", 2),
    ],
    ids=str,
)
def test_the_kernels_for_gpus_are_measured_as_well(stopwatch: Stopwatch, point: Any) -> None:
    """Under Triton's interpreter: what they compute, and nothing about their speed."""
    gpu = import_module("pagedrun.kernels.gpu.backend").GpuBackend()
    shape = replace(TINY, head_dim=32)
    contexts = KernelContexts(shape, torch.device("cpu"), torch.float32)
    result = point.build(contexts, gpu).measure(stopwatch, 1, ROOFLINE)
    assert all("seconds" in each for each in result["contenders"].values()), result
    if isinstance(point, DecodePoint):
        assert list(result["contenders"]) == ["contiguous", "paged v1", "paged v2"]
        assert list(result["ratios"]) == [
            "paged v1 over contiguous",
            "paged v2 over contiguous",
            "v1 over v2",
        ]


@pytest.mark.gpu
def test_everything_is_measured_on_a_gpu() -> None:
    device = choose_device("cuda")
    bench = KernelsBench(device, replace(TINY, head_dim=64), torch.bfloat16, SWEEP, 2, 60.0)
    result: Any = bench.run(silent)
    assert result["skipped"] == []
    for part in SWEEP.parts:
        for point in result[part]:
            for name, each in point["contenders"].items():
                assert "seconds" in each, (part, name, each)
                assert each["seconds"].low > 0


class TestWork:
    """Bytes and operations as counted by hand: 4 query heads, 2 kv heads of 16, float32."""

    def test_of_decode(self, contexts: KernelContexts) -> None:
        (work, _) = [call.work for call in DecodePoint(40, 3).build(contexts, CPU.kernels).calls]
        assert work == Work(4 * (3 * 40 * 2 * 2 * 16 + 2 * 3 * 4 * 16), 4 * 3 * 40 * 4 * 16)

    def test_of_prefix(self, contexts: KernelContexts) -> None:
        reread, once = PrefixPoint(128, 5).build(contexts, CPU.kernels).calls
        assert reread.work.flops == once.work.flops == 4 * 5 * (128 + 64) * 4 * 16
        assert reread.work.num_bytes - once.work.num_bytes == 4 * 4 * 128 * 2 * 2 * 16

    def test_of_prefill(self, contexts: KernelContexts) -> None:
        (work, _) = [call.work for call in PrefillPoint(3, 10).build(contexts, CPU.kernels).calls]
        assert work.flops == 4 * (11 + 12 + 13) * 4 * 16


class TestPoint:
    def point(self, *calls: Callable[[], Tensor], **settings: Any) -> KernelPoint:
        named = [KernelCall(str(i), call, Work(8, 0)) for i, call in enumerate(calls)]
        return KernelPoint({"rows": 1}, named, **settings)

    def test_what_is_wrong_gets_no_figure(self, stopwatch: Stopwatch) -> None:
        right = torch.ones(2, 4)
        wrong = right.clone()
        wrong[1, 3] = 1.1
        spoiled = right.clone()
        spoiled[0, 0] = torch.nan
        point = self.point(
            lambda: right,
            lambda: right + 1e-6,
            lambda: wrong,
            lambda: spoiled,
            lambda: right[:1],
            ratios={"good": ("1", "0"), "bad": ("2", "0")},
        )
        result: Any = point.measure(stopwatch, 3, ROOFLINE)
        good, close, *bad = result["contenders"].values()
        assert good["seconds"].count == close["seconds"].count == 3
        assert [each["failed"] for each in bad] == [
            "wrong: a row differs by 0.05",
            "wrong: a row differs by inf",
            "wrong: a row differs by inf",
        ]
        assert list(result["ratios"]) == ["good"]

    def test_a_failure_is_told_and_the_others_go_on(self, stopwatch: Stopwatch) -> None:
        def broken() -> Tensor:
            raise ValueError("no such tile\nand much more")

        one = torch.ones(1, 1)
        result = self.point(lambda: one, broken, lambda: one).measure(stopwatch, 1, ROOFLINE)
        first, failed, last = result["contenders"].values()
        assert failed == {"failed": "ValueError: no such tile"}
        assert "seconds" in first
        assert "seconds" in last

    def test_what_nothing_can_be_held_against_gets_no_figure(self, stopwatch: Stopwatch) -> None:
        def broken() -> Tensor:
            raise ValueError

        for point in (
            self.point(broken, lambda: torch.ones(1)),
            self.point(lambda: torch.ones(1), truth=broken),
        ):
            last = list(point.measure(stopwatch, 1, ROOFLINE)["contenders"].values())[-1]
            assert last == {"failed": "there is no reference to check it against"}

    def test_the_truth_decides_where_there_is_one(self, stopwatch: Stopwatch) -> None:
        ids = torch.tensor([3, 4])
        other = KernelCall("other draw", lambda: ids + 1, Work(1, 0), is_comparable=False)
        calls = [other, KernelCall("ours", lambda: ids, Work(1, 0))]
        calls.append(KernelCall("off by one", lambda: ids + torch.tensor([0, 1]), Work(1, 0)))
        point: Any = KernelPoint({}, calls, lambda: ids).measure(stopwatch, 1, ROOFLINE)
        result = point["contenders"]
        assert result["other draw"]["difference"] is None
        assert result["ours"]["difference"] == 0.0
        assert result["off by one"] == {"failed": "wrong: a row differs by 0.5"}

    def test_rates_follow_from_the_middle(self) -> None:
        class Fixed(Stopwatch):
            def seconds(self, prepared: Seq[Any], turns: int) -> list[list[float]]:
                return [[4.0, 1.0, 2.0], [2.0, 2.0, 8.0]]

        same = partial(torch.ones, 1)
        calls = [KernelCall("a", same, Work(100, 1)), KernelCall("b", same, Work(1, 3000))]
        point = KernelPoint({}, calls, ratios={"b/a": ("b", "a")})
        result: Any = point.measure(Fixed(0), 3, ROOFLINE)
        a, b = result["contenders"].values()
        assert (a["seconds"].median, a["gb_per_s"], a["of_roof"]) == (2.0, 50 / 1e9, 0.5)
        assert (b["tflop_per_s"], b["of_roof"]) == (1500 / 1e12, 1.5)
        assert result["ratios"]["b/a"].median == 2.0  # of 0.5, 2 and 4: turn by turn


def test_difference_is_by_row() -> None:
    truth = torch.tensor([[3.0, 4.0], [0.0, 100.0]])
    assert difference(truth + torch.tensor([[0.0, 1.0], [0.0, 1.0]]), truth) == pytest.approx(0.2)


class TestStopwatch:
    def test_calls_take_turns(self, stopwatch: Stopwatch) -> None:
        order: list[str] = []
        calls = [partial(order.append, name) for name in "abc"]
        stopwatch.seconds([stopwatch.prepare(call) for call in calls], 3)
        assert "".join(order) == "abccbaabc"

    def test_takes_the_time_of_the_call_alone(
        self, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]

        def pass_time(seconds: float) -> None:
            now[0] += seconds

        monkeypatch.setattr("pagedrun.paged.bench.kernel_timing.perf_counter", lambda: now[0])
        emptying_takes_time = SimpleNamespace(add_=lambda _: pass_time(100.0))
        monkeypatch.setattr(stopwatch, "_scratch", emptying_takes_time)
        calls = [partial(pass_time, 2.0), partial(pass_time, 0.5)]
        assert stopwatch.seconds(calls, 2) == [[2.0, 2.0], [0.5, 0.5]]

    def test_empties_twice_the_cache(self) -> None:
        assert Stopwatch(1 << 20).flushed_bytes == 2 << 20


def test_the_roofline_is_what_was_measured() -> None:
    class Fixed(Stopwatch):
        sums: ClassVar[list[float]]

        def seconds(self, prepared: Seq[Any], turns: int) -> list[list[float]]:
            super().seconds(prepared, 1)
            return [[4.0, 2.0], self.sums, [0.5, 1.0], [0.25, 0.125]]

    for Fixed.sums, best, usual in (([9.0, 5.0], 400.0, 800 / 3), ([0.5, 2.0], 800.0, 320.0)):
        roofline = Roofline.measure(torch.device("cpu"), torch.float32, Fixed(64), 400, 10)
        assert roofline == Roofline(best, 4000.0, usual, 2000 / 0.75, 0.125, "float32")


@pytest.mark.parametrize(("wide_s", "chosen"), [(1.0, "float32"), (2.0, "bfloat16")])
def test_a_type_that_torch_multiplies_slowly_is_no_roofline(wide_s: float, chosen: str) -> None:
    """Products of bfloat16 on AVX2 took six minutes, and kernels a hundred times their roofline."""

    class Fixed(Stopwatch):
        def seconds(self, prepared: Seq[Any], turns: int) -> list[list[float]]:
            super().seconds(prepared, 1)
            return [[3.0], [wide_s]] if len(prepared) == 2 else [[1.0]] * 4

    roofline = Roofline.measure(torch.device("cpu"), torch.bfloat16, Fixed(64), 400, 10)
    assert roofline.dtype == chosen


class TestDeviceFacts:
    def test_of_a_cpu(self) -> None:
        facts = BenchDevice(CPU)
        assert facts.free_bytes() > 0
        assert facts.to_dict() == {"type": "cpu", "cache_bytes": facts.cache_bytes}

    def test_the_largest_cache_counts(self, tmp_path: Path) -> None:
        for index, size in enumerate(("64K", "1024K", "262144K", "nonsense")):
            (tmp_path / f"index{index}").mkdir()
            (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
        assert largest_cpu_cache(tmp_path) == 256 << 20
        assert largest_cpu_cache(tmp_path / "none") is None


def test_other_heads_are_said_to_be_others() -> None:
    config = Shape.named("qwen3-0.6b").config
    shape = KernelShape.of("qwen3-0.6b", config, 16, num_heads=64, head_dim=64)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (64, 8, 64)
    assert shape.name == "qwen3-0.6b, other heads"
    with pytest.raises(UsageError, match="heads 12 cannot be divided among 8 kv heads"):
        KernelShape.of("qwen3-0.6b", config, 16, num_heads=12)
