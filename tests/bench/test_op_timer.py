"""What measures a run: the times of its ops, and its figures."""

import pytest
import torch

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.paged.bench.contender import measure
from pagedrun.paged.bench.op_timer import OpTimer, attention_seconds
from pagedrun.paged.bench.workload import Workload
from pagedrun.paged.values.errors import UsageError
from tests.bench.tiny import FLOAT32, TINY


class TestOpTimer:
    def test_passes_everything_on(self) -> None:
        kernels = Backend()
        timer = OpTimer(kernels)
        weight, bias, x = torch.randn(5, 4), torch.randn(5), torch.randn(3, 4)
        layer, plain = (
            each.pack_linear(weight, bias, row_invariant=True) for each in (timer.kernels, kernels)
        )
        assert torch.equal(layer(x), plain(x))
        assert (layer.in_features, layer.out_features, layer.num_bytes) == (4, 5, 4 * (20 + 5))
        assert (layer.is_packed, layer.row_invariant) == (plain.is_packed, plain.row_invariant)
        before = timer.snapshot()
        gate_up = torch.randn(2, 8)
        assert torch.equal(timer.kernels.silu_mul(gate_up=gate_up), kernels.silu_mul(gate_up))
        assert dict(timer.calls) == {"PackedLinear": 1, "silu_mul": 1}
        assert set(timer.since(before)) == {"silu_mul"}
        assert attention_seconds(timer.seconds) == 0.0

    def test_ops_add_up_to_part_of_the_run(self) -> None:
        timer = OpTimer(CpuBackend())
        engine = TINY.engine(timer.kernels, **FLOAT32)
        figures, _ = measure(engine, Workload(4, 64, 8, 6).requests(512), timer)
        assert 0 < sum(figures.decode_ops.values()) < sum(figures.ops.values()) < figures.total_s
        assert "prefill_attention" in figures.ops
        assert "prefill_attention" not in figures.decode_ops
        assert figures.decode_attention is not None
        assert figures.decode_step is not None
        assert 0 < figures.decode_attention.median < figures.decode_step.median


class TestMeasure:
    def test_counts_what_was_asked_for(self) -> None:
        timer = OpTimer(CpuBackend())
        engine = TINY.engine(timer.kernels, **FLOAT32, block_size=16)
        figures, answers = measure(engine, Workload(4, 64, 8, 6).requests(512), timer)
        assert [answer.request.index for answer in answers] == [0, 1, 2, 3]
        assert (figures.rows, figures.prompt_tokens, figures.generated_tokens) == (4, 288, 24)
        assert figures.cached_tokens == 3 * 64
        assert figures.hit_rate == pytest.approx(192 / 288)
        assert figures.peak_blocks == 64 // 16 + 4
        assert figures.decode_rows == 4
        assert figures.decode_step is not None
        assert figures.decode_step.count == 5
        assert 0 < figures.prefill_s + figures.decode_s <= figures.total_s

    def test_a_row_that_cannot_run_ends_it(self) -> None:
        timer = OpTimer(CpuBackend())
        engine = TINY.engine(timer.kernels, **FLOAT32, num_blocks=2)
        with pytest.raises(UsageError, match=r"row 0 cannot be run: .*num_blocks"):
            measure(engine, Workload(2, 64, 8, 6).requests(512), timer)

    def test_a_prompt_in_chunks_is_prefill_to_its_end(self) -> None:
        timer = OpTimer(CpuBackend())
        engine = TINY.engine(timer.kernels, **FLOAT32, max_num_batched_tokens=16)
        figures, _ = measure(engine, Workload(1, 0, 50, 4).requests(512), timer)
        assert figures.decode_step is not None
        assert figures.decode_step.count == 3
        assert "prefill_attention" not in figures.decode_ops
