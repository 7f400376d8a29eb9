"""What measures a run: the rows, the step log, the op timer, spreads, and the benchmarks."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pagedrun.cli.bench.peer import transformers_peer
from pagedrun.kernels import cpu
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.prefix_groups import PrefixState
from pagedrun.kernels.reference.backend import ReferenceBackend
from pagedrun.paged.bench.budget import Budget
from pagedrun.paged.bench.neighbours import Neighbours
from pagedrun.paged.bench.runs.alone import SharingSwitch
from pagedrun.paged.bench.runs.contender import EngineContender
from pagedrun.paged.bench.runs.figures import measure
from pagedrun.paged.bench.runs.lengths import Lengths
from pagedrun.paged.bench.runs.model import BenchModel
from pagedrun.paged.bench.runs.op_timer import OpTimer, attention_seconds
from pagedrun.paged.bench.runs.prefix import Mode, PrefixBench
from pagedrun.paged.bench.runs.step_log import StepLog
from pagedrun.paged.bench.runs.throughput import Comparison, ThroughputBench
from pagedrun.paged.bench.runs.workload import Workload
from pagedrun.paged.bench.spread import Spread
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.values.errors import UsageError
from tests.conftest import MakeModel

TINY = BenchModel.from_shape("tiny")
FLOAT32: Mapping[str, Any] = {"dtype": "float32"}


def silent(message: str) -> None:
    pass


class TestWorkload:
    def test_groups_begin_alike_and_rows_go_on_alone(self) -> None:
        requests = Workload(6, 10, 5, 4, group_size=3).requests(512)
        prompts = [request.prompt_token_ids for request in requests]
        assert [len(prompt) for prompt in prompts] == [15] * 6
        assert len({prompt[:10] for prompt in prompts}) == 2
        assert prompts[0][:10] == prompts[2][:10] != prompts[3][:10]
        assert len({prompt[10:] for prompt in prompts}) == 6
        assert all(0 <= token_id < 512 for prompt in prompts for token_id in prompt)

    def test_are_the_same_every_time_and_answered_in_full(self) -> None:
        workload = Workload(2, 3, 4, 5)
        assert workload.requests(512) == workload.requests(512)
        assert workload.requests(512) != Workload(2, 3, 4, 5, seed=1).requests(512)
        params = workload.requests(512)[0].params
        assert (params.max_tokens, params.ignore_eos, params.is_greedy) == (5, True, True)

    def test_every_row_draws_its_own_lengths(self) -> None:
        workload = Workload(400, 3, Lengths(2, 9), Lengths(4, 6))
        requests = workload.requests(512)
        assert requests == workload.requests(512)
        prompts = [len(request.prompt_token_ids) for request in requests]
        outputs = [request.params.max_tokens for request in requests]
        assert set(prompts) == set(range(5, 13))
        assert set(outputs) == {4, 5, 6}
        assert all(count > 20 for count in Counter(prompts).values())
        assert prompts != [
            len(each.prompt_token_ids) for each in replace(workload, seed=1).requests(512)
        ]
        assert workload.prompt_tokens == 8.5
        assert workload.to_dict()["unique"] == {"low": 2, "high": 9}
        assert not workload.has_one_length

    def test_a_range_of_one_is_that_number(self) -> None:
        workload = Workload(6, 4, Lengths(5, 5), Lengths(3, 3))
        assert workload.requests(512) == Workload(6, 4, 5, 3).requests(512)
        assert workload.to_dict() == Workload(6, 4, 5, 3).to_dict()
        assert workload.has_one_length

    def test_warming_up_takes_a_moment(self) -> None:
        short = Workload(400, 4096, Lengths(2, 900), 500).warm_up()
        assert (short.rows, short.shared) == (16, 512)
        assert (short.unique, short.output) == (Lengths(2, 8), Lengths(3, 3))

    @pytest.mark.parametrize(
        ("sizes", "flag"),
        [
            ((0, 1, 1, 2), "rows"),
            ((1, -1, 1, 2), "shared"),
            ((1, 1, 0, 2), "unique"),
            ((1, 1, Lengths(0, 8), 2), "unique"),
            ((1, 1, 8, Lengths(1, 9)), "output"),
        ],
    )
    def test_refuses_what_cannot_be(self, sizes: tuple[Any, ...], flag: str) -> None:
        with pytest.raises(UsageError, match=f"^{flag} is "):
            Workload(*sizes)


class TestSpread:
    def test_of_values(self) -> None:
        assert Spread.of([3.0, 1.0, 8.0]) == Spread(3.0, 4.0, 1.0, 8.0, 3)
        assert Spread.of([]) is None

    def test_of_ratios_is_pair_by_pair(self) -> None:
        assert Spread.of_ratios([8.0, 9.0], [2.0, 1.0]) == Spread(6.5, 6.5, 4.0, 9.0, 2)

    def test_of_ratios_leaves_out_what_was_not_measured(self) -> None:
        assert Spread.of_ratios([8.0, None, 1.0], [2.0, 1.0, None]) == Spread(4.0, 4.0, 4.0, 4.0, 1)
        assert Spread.of_ratios([1.0], [0.0]) is None


def test_decode_steps_are_those_of_the_full_batch_that_touch_no_prompt() -> None:
    timer = OpTimer(ReferenceBackend())
    log = StepLog(timer)
    generated = 0
    for called, tokens in [("pd", 1), ("p", 0), ("d", 3), ("d", 3), ("pd", 3), ("d", 2)]:
        if "p" in called:
            timer.note("prefill_attention", 0.1)
        if "d" in called:
            timer.note("decode_attention", 0.1)
        generated += tokens
        fields = {"generated_tokens": generated, "prompt_tokens": 99}  # counted when rows begin
        log(StepRecord(**{**dict.fromkeys(StepRecord.__dataclass_fields__, 0), **fields}))
    only_decode = [False, False, True, True, False, True]
    assert [step.only_decodes for step in log.steps] == only_decode
    assert log.decode_steps == log.steps[2:4]


def test_a_step_that_is_looked_at_late_is_known_by_the_ops_it_called() -> None:
    timer = OpTimer(ReferenceBackend())
    log = StepLog(timer, async_scheduling=True)
    generated = 0
    for called, tokens in [("prefill_attention", 0), ("decode_attention", 1), ("", 1)]:
        if called:
            timer.note(called, 0.1)
        generated += tokens
        fields = {"generated_tokens": generated}
        log(StepRecord(**{**dict.fromkeys(StepRecord.__dataclass_fields__, 0), **fields}))
    assert [set(step.op_seconds) for step in log.steps] == [
        set(),
        {"prefill_attention"},
        {"decode_attention"},
    ]
    assert log.decode_steps == [log.steps[2]]


class TestOpTimer:
    def test_passes_everything_on(self) -> None:
        kernels = ReferenceBackend()
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


class Clocks:
    """The time, and what of it this process computed, as `Neighbours` sees them."""

    def __init__(self) -> None:
        self.passed_s = 50.0
        self.computed_s = 20.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    module = "pagedrun.paged.bench.neighbours"
    monkeypatch.setattr(f"{module}.perf_counter", lambda: clocks.passed_s)
    monkeypatch.setattr(f"{module}.process_time", lambda: clocks.computed_s)
    return clocks


class TestNeighbours:
    def test_counts_what_others_did(self, tmp_path: Path, clocks: Clocks) -> None:
        stat = tmp_path / "stat"
        tick = os.sysconf("SC_CLK_TCK")
        stat.write_text("cpu 10 0 10 1000 50 0 0 0 5 5\ncpu0 1 1\n")
        neighbours = Neighbours(stat)
        # 1000 CPU seconds of work, as much idling, and guests, who are in the work already.
        stat.write_text(
            f"cpu {10 + 600 * tick} 0 {10 + 400 * tick} {1000 + 1000 * tick} 50 0 0 0 99 9"
        )
        clocks.passed_s += 10
        assert neighbours.cpus_busy() == pytest.approx(100)

    def test_own_work_does_not_count(self, tmp_path: Path, clocks: Clocks) -> None:
        stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
        stat.write_text("cpu 10 0 10 1000 50 0 0 0 0 0\n")
        neighbours = Neighbours(stat)
        # All that the machine did in ten seconds: 3 CPU seconds of ours, and 20 of others.
        stat.write_text(f"cpu {10 + 23 * tick} 0 10 1000 50 0 0 0 0 0\n")
        clocks.passed_s += 10
        clocks.computed_s += 3
        assert neighbours.cpus_busy() == pytest.approx(2)

    def test_a_moment_is_too_short_to_tell(self, clocks: Clocks) -> None:
        neighbours = Neighbours()
        clocks.passed_s += 0.2
        assert neighbours.cpus_busy() is None

    def test_elsewhere_nothing_is_known(self, tmp_path: Path, clocks: Clocks) -> None:
        neighbours = Neighbours(tmp_path / "stat")
        clocks.passed_s += 10
        assert neighbours.cpus_busy() is None


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


class TestThroughput:
    workload = Workload(6, 48, 8, 5)

    def test_settings_take_turns_and_agree(self) -> None:
        said: list[str] = []
        other = Comparison("no-cache", {"prefix_caching": False, "max_num_seqs": 2})
        bench = ThroughputBench(TINY, self.workload, FLOAT32, other, repeat=2)
        result = bench.run(said.append)
        turns = [line.split(",")[0] for line in said if " of 2" in line]
        assert turns == ["pagedrun", "no-cache", "no-cache", "pagedrun"]
        ours, other = result["contenders"]
        assert (ours["runs"][0]["decode_rows"], other["runs"][0]["decode_rows"]) == (6, 2)
        assert (ours["runs"][0]["hit_rate"] > 0, other["runs"][0]["hit_rate"]) == (True, 0.0)
        (ratio,) = result["ratios"]
        assert (ratio["name"], ratio["rows_alike"], ratio["rows"]) == ("no-cache", 6, 6)
        times = [[run["total_s"] for run in each["runs"]] for each in (ours, other)]
        expected = Spread.of_ratios(times[1], times[0])
        assert expected is not None
        assert ratio["end_to_end"] == expected.to_dict()

    def test_rows_of_several_lengths(self) -> None:
        workload = Workload(6, 16, Lengths(2, 30), Lengths(2, 9))
        requests = workload.requests(512)
        (ours,) = ThroughputBench(TINY, workload, FLOAT32).run(silent)["contenders"]
        (run,) = ours["runs"]
        assert run["prompt_tokens"] == sum(len(each.prompt_token_ids) for each in requests)
        assert run["generated_tokens"] == sum(each.params.max_tokens for each in requests)

    def test_a_setting_is_not_compared_with_itself(self) -> None:
        other = Comparison("--prefix-caching", {"prefix_caching": True})
        bench = ThroughputBench(TINY, self.workload, FLOAT32, other)
        with pytest.raises(UsageError, match="compare: --prefix-caching is what the other flags"):
            bench.run(silent)


LLAMA = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 16_384,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
QWEN2 = {**LLAMA, "model_type": "qwen2", "rope_scaling": None, "tie_word_embeddings": True}


class TestTransformers:
    @pytest.mark.parametrize("fields", [None, LLAMA, QWEN2], ids=["qwen3", "llama", "qwen2"])
    def test_the_same_weights_give_the_same_tokens(self, fields: dict[str, Any] | None) -> None:
        model = TINY
        if fields is not None:
            config = ModelConfig.from_json(JsonObject("config.json", fields))
            model = BenchModel("small", config, fields=fields)
        bench = ThroughputBench(model, Workload(5, 48, 8, 8), FLOAT32, peer=transformers_peer(2))
        result = bench.run(silent)
        (ratio,) = result["ratios"]
        assert (ratio["name"], ratio["rows_alike"], ratio["rows"]) == ("transformers", 5, 5)
        (run,) = result["contenders"][1]["runs"]
        assert (run["batch_rows"], run["prompt_tokens"], run["generated_tokens"]) == (2, 280, 40)
        assert run["decode_step"]["count"] == 2 * 7  # of the full batches
        assert 0 < run["prefill_s"] < run["total_s"]

    def test_a_folder_is_loaded_by_both(self, make_model: MakeModel) -> None:
        model = BenchModel.from_folder(make_model("mistral", "bench"))
        bench = ThroughputBench(model, Workload(3, 20, 8, 8), FLOAT32, peer=transformers_peer(None))
        (ratio,) = bench.run(silent)["ratios"]
        assert ratio["rows_alike"] == 3

    def test_as_many_rows_as_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cpu = torch.device("cpu")
        peer = transformers_peer(None).contender(TINY, torch.float32, cpu)
        requests = Workload(3, 20, 8, 2).requests(512)
        assert peer.run(requests)[0].to_dict()["batch_rows"] == 3
        nothing = type("Nothing", (), {"read": lambda: type("Bytes", (), {"available": 1})})
        monkeypatch.setattr("transformers_peer.HostMemory", nothing)
        assert peer.run(requests)[0].to_dict()["batch_rows"] == 1

    def test_without_the_adapter_it_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="in the repository of pagedrun"):
            transformers_peer(None, tmp_path)

    def test_rows_of_several_lengths_are_refused(self) -> None:
        for workload in (Workload(3, 20, Lengths(4, 8), 2), Workload(3, 20, 8, Lengths(2, 3))):
            with pytest.raises(UsageError, match="rows of one length"):
                ThroughputBench(TINY, workload, FLOAT32, peer=transformers_peer(None))


class TestSharingSwitch:
    def test_alone_every_token_is_read_by_the_decode_kernel(self) -> None:
        switch = SharingSwitch(CpuBackend())
        timer = OpTimer(switch.kernels)
        engine = TINY.engine(timer.kernels, **FLOAT32)
        workload = Workload(rows=4, shared=512, unique=8, output=4)
        ratio = {}
        for name, alone in (("once", None), ("alone", switch), ("once again", None)):
            contender = EngineContender(name, engine, timer, alone)
            figures, ratio[name] = contender.run(workload.requests(512))
            assert figures.hit_rate > 0.7
        assert ratio["once"] == ratio["once again"]
        assert ratio["once"] == ratio["alone"]  # float32: rounding changes no token

    def test_what_the_decode_kernel_is_given(self) -> None:
        seen: list[PrefixState | None] = []

        class Watched(CpuBackend):
            def decode_attention(self, *args: Any) -> Tensor:
                seen.append(args[6])
                return cpu.decode_attention(*args)

        switch = SharingSwitch(Watched())
        timer = OpTimer(switch.kernels)
        engine = TINY.engine(timer.kernels, **FLOAT32)
        requests = Workload(rows=32, shared=512, unique=8, output=3).requests(512)
        EngineContender("alone", engine, timer, switch).run(requests)
        assert seen
        assert all(prefix is None for prefix in seen)
        assert "prefix_attention" not in timer.calls
        seen.clear()
        EngineContender("once", engine, timer).run(requests)
        assert any(prefix is not None for prefix in seen)
        assert timer.calls["prefix_attention"] > 0


class TestPrefix:
    def test_every_point_in_every_mode(self) -> None:
        bench = PrefixBench(TINY, (64, 0), (3, 1), unique=4, output=3, repeat=1, flags=FLOAT32)
        result = bench.run(silent)
        points = result["points"]
        places = [(point["prefix"], point["group"]) for point in points]
        assert places == [(0, 1), (0, 3), (64, 1), (64, 3)]
        for point in points:
            assert list(point["modes"]) == [mode.value for mode in Mode]
            assert set(point["ratios"]) == {"once_over_reread", "caching_over_none"}
            assert point["skipped"] == []
            for mode in point["modes"].values():
                assert 0 < mode["decode_attention_s"]["median"] < mode["decode_step_s"]["median"]
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
        monkeypatch.setattr("pagedrun.paged.bench.budget.perf_counter", lambda: now[0])
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
