"""What `bench memory` counts, held against the same counted by hand from the drawn lengths."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.bench.memory import (
    BLOCK_SIZES,
    CacheShape,
    HeldBlocks,
    MemoryBench,
    NormalLengths,
    SampleFork,
)
from pagedrun.paged.bench.memory_flow import Flow
from pagedrun.paged.bench.model_shapes import Shape
from pagedrun.paged.bench.result import plain
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.planning.simulation import Simulator
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.values.errors import UsageError

SMALL = NormalLengths(mean=40, std=25, low=5, high=128)


def quiet(message: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="module")
def usual() -> Any:
    """The benchmark as it runs without flags."""
    return plain(MemoryBench().run(quiet))


class TestLengths:
    def test_are_clipped_and_normal_between(self) -> None:
        drawn = np.array(NormalLengths().draw(0, 20_000))
        assert (drawn.min(), drawn.max()) == (200, min(drawn.max(), 2048))
        inside = drawn[drawn > 200]
        assert 0.05 < 1 - len(inside) / len(drawn) < 0.09  # 1.5 deviations below the middle
        assert abs(np.median(drawn) - 500) < 5
        assert abs(np.quantile(drawn, 0.8413) - 700) < 8  # one deviation above it

    def test_fewer_are_the_first_of_more(self) -> None:
        assert SMALL.draw(3, 50)[:20] == SMALL.draw(3, 20)
        assert SMALL.draw(3, 20) != SMALL.draw(4, 20)

    @pytest.mark.parametrize(
        ("fields", "flag"),
        [
            ({"low": 0}, "min_len is 0"),
            ({"low": 300, "high": 299}, "min_len 300 is more than max_len 299"),
            ({"mean": float("nan")}, "mean is nan"),
            ({"std": -1.0}, "std is -1"),
            ({"std": float("inf")}, "std is inf"),
        ],
    )
    def test_ranges_that_hold_nothing(self, fields: dict[str, Any], flag: str) -> None:
        with pytest.raises(UsageError, match=flag):
            NormalLengths(**fields)


class TestShape:
    def test_bytes_of_a_token(self) -> None:
        assert CacheShape().bytes_per_token == 32 * 32 * 128 * 2 * 2 == 524_288
        shape = CacheShape.of_config("qwen3-8b", Shape.named("qwen3-8b").config)
        assert shape.bytes_per_token == 36 * 8 * 128 * 2 * 2
        eight_bit = shape.changed(dtype="int8")
        assert eight_bit.bytes_per_token == 36 * 8 * (128 + 4) * 2  # a scale for each head
        assert eight_bit.name == "qwen3-8b, changed"
        assert shape.changed(dtype=None) == shape

    @pytest.mark.parametrize("name", ["gemma-4-e2b", "gemma-4-31b"])
    def test_a_model_with_layers_of_several_sizes_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match=f"^{name} has layers with different numbers of bytes"):
            CacheShape.of_config(name, Shape.named(name).config)

    def test_is_what_the_cache_allocates(self) -> None:
        config: ModelConfig = Shape.named("llama-3.2-1b").config
        [spec] = config.network.kv_cache_specs("bfloat16")
        shape = CacheShape.of_config("llama-3.2-1b", config)
        assert shape.dtype == "bfloat16"
        assert shape.bytes_per_token == spec.bytes_per_token


class TestHeldBlocks:
    @pytest.mark.parametrize("block_size", [1, 3, 16, 128])
    def test_by_hand(self, block_size: int) -> None:
        for seed in range(5):
            lengths = SMALL.draw(seed, 30)
            held = HeldBlocks.by(lengths, block_size, 7)
            blocks = sum(-(-length // block_size) for length in lengths)
            assert (held.blocks, held.tokens) == (blocks, sum(lengths))
            assert held.num_shared == 0
            assert held.utilization == sum(lengths) / (blocks * block_size)
            empty = [-length % block_size for length in lengths]
            assert held.empty_per_request == pytest.approx(sum(empty) / 30)
            assert held.bytes == blocks * block_size * 7

    @pytest.mark.parametrize("num_shared", [0, 8, 20, 33])
    def test_a_beginning_is_held_once_in_whole_blocks(self, num_shared: int) -> None:
        lengths = SMALL.draw(1, 12)
        alone = HeldBlocks.by(lengths, 8, num_shared=num_shared, share=False)
        shared = HeldBlocks.by(lengths, 8, num_shared=num_shared)
        assert alone.blocks == sum(-(-(num_shared + length) // 8) for length in lengths)
        assert alone.blocks - shared.blocks == 11 * (num_shared // 8)
        assert shared.num_shared == num_shared // 8


class TestSampleFork:
    @pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 200, 208])
    @pytest.mark.parametrize("num_samples", [1, 2, 10])
    def test_by_hand(self, num_tokens: int, num_samples: int) -> None:
        fork = SampleFork.of(num_tokens, num_samples, 16)
        blocks = -(-num_tokens // 16)
        assert fork.together.blocks == blocks
        assert fork.together.tokens == num_tokens
        assert fork.together.num_shared == (blocks if num_samples > 1 else 0)
        assert fork.alone.blocks == num_samples * blocks
        writes_into_shared = num_tokens % 16 > 0 and num_samples > 1
        assert fork.num_copies == int(writes_into_shared)
        takes_a_block = writes_into_shared or num_tokens % 16 == 0
        assert fork.diverged.blocks == blocks + int(takes_a_block)


class TestFlow:
    @pytest.mark.parametrize("block_size", [1, 7, 16, 128])
    def test_totals_reconcile_with_the_pool_at_every_sampled_step(
        self, monkeypatch: pytest.MonkeyPatch, block_size: int
    ) -> None:
        lengths = SMALL.draw(2, 40)
        seen: dict[int, tuple[int, int, int]] = {}
        original = Simulator._record_step

        def watched(simulator: Simulator) -> None:
            simulator._scheduler.check()
            running = simulator._scheduler.running
            tables = [sequence.block_table for sequence in running]
            tokens = sum(sequence.num_stored_tokens for sequence in running)
            assert simulator._pool.num_held == len(set(chain(*tables))) == sum(map(len, tables))
            seen[simulator._num_steps] = (len(running), simulator._pool.num_held, tokens)
            original(simulator)

        monkeypatch.setattr(Simulator, "_record_step", watched)
        flow = Flow.through(lengths, block_size, 3 * 128, bytes_per_token=2)
        figures = plain(flow.over_time())
        assert len(figures["timeline"]) > 20
        for record in figures["timeline"]:
            shown = (record["running"], record["blocks_used"], record["tokens"])
            assert shown == seen[record["step"]]
        assert figures["blocks"] == 3 * 128 // block_size
        assert figures["generated_tokens"] == sum(n - (n + 1) // 2 + 1 for n in lengths)
        held = [each for each in figures["timeline"] if each["blocks_used"]]
        slots = [each["blocks_used"] * block_size for each in held]
        used = [each["tokens"] / slot for each, slot in zip(held, slots, strict=True)]
        assert figures["utilization"] == pytest.approx(np.mean(used))
        assert figures["mean_running"] == pytest.approx(np.mean([each["running"] for each in held]))
        all_slots = figures["blocks"] * block_size
        stored = np.mean([each["tokens"] for each in held]) / all_slots
        assert figures["memory_used"] == pytest.approx(stored)
        assert "timeline" not in plain(flow)

    def test_blocks_of_the_longest_length_are_contiguous_reservation(self) -> None:
        """Counted again without a pool: so many places, each taken from first to last token."""
        lengths = SMALL.draw(5, 50)
        flow = Flow.through(lengths, 128, 4 * 128, bytes_per_token=2)
        assert flow.max_running == 4
        assert flow.preemptions == 0
        # Longest answers first, as the plan has it; prompts are short enough for one step.
        outputs = sorted((n - (n + 1) // 2 + 1 for n in lengths), reverse=True)
        places = [0] * 4
        for output in outputs:
            places[places.index(min(places))] += output
        assert flow.steps == max(places)

    def test_what_a_request_stores_when_it_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ended: Counter[int] = Counter()
        original = Scheduler.finish

        def watched(scheduler: Scheduler, sequence: Sequence) -> None:
            ended[sequence.num_stored_tokens] += 1
            original(scheduler, sequence)

        monkeypatch.setattr(Scheduler, "finish", watched)
        lengths = [*SMALL.draw(6, 30), 1, 2]
        Flow.through(lengths, 16, 1024, bytes_per_token=2)
        assert ended == Counter(lengths)

    def test_nothing_is_left_of_requests_of_one_token(self) -> None:
        flow = Flow.through([1, 1, 1], 16, 256, bytes_per_token=2)
        assert flow.samples
        assert not any(each["blocks_used"] for each in flow.samples)
        assert (flow.mean_running, flow.utilization) == (0.0, 0.0)


class TestMemoryBench:
    @pytest.mark.long
    def test_the_usual_table(self, usual: dict[str, Any]) -> None:
        """What others tell of this setting: about 24 % if reserved, about 98.5 % if paged."""
        drawn = NormalLengths().draw(0, 200)
        assert [each["requests"] for each in usual["at_once"]] == [10, 25, 50, 100, 200]
        for each in usual["at_once"]:
            lengths = drawn[: each["requests"]]
            contiguous, paged = each["contiguous"], each["paged"]
            assert each["tokens"] == sum(lengths)
            assert contiguous["blocks"] == len(lengths)
            assert contiguous["bytes"] == len(lengths) * 2048 * 524_288
            assert contiguous["utilization"] == pytest.approx(np.mean(lengths) / 2048)
            assert paged["blocks"] == sum(-(-length // 16) for length in lengths)
            assert paged["bytes"] == paged["blocks"] * 16 * 524_288
            assert contiguous["utilization"] == pytest.approx(0.244, abs=0.025)
            assert paged["utilization"] == pytest.approx(0.985, abs=0.005)

    @pytest.mark.long
    def test_the_usual_system_prompt(self, usual: dict[str, Any]) -> None:
        assert usual["shape"]["bytes_per_token"] == 524_288
        sharing = usual["sharing"]
        assert (sharing["tokens"], sharing["requests"]) == (200, 10)
        assert sharing["prompt"] == {
            "blocks": 13,
            "blocks_alone": 130,
            "bytes_saved": 117 * 16 * 524_288,  # 936 MiB
            "blocks_diverged": 14,
            "copies": 1,
        }
        lengths = NormalLengths().draw(0, 10)
        alone = sum(-(-(200 + length) // 16) for length in lengths)
        assert sharing["rows"]["blocks_alone"] == alone
        assert sharing["rows"]["blocks"] == alone - 9 * 12
        assert sharing["rows"]["bytes_saved"] == 9 * 12 * 16 * 524_288

    @pytest.mark.long
    def test_the_usual_comparison_over_time(self, usual: dict[str, Any]) -> None:
        flows = usual["over_time"]
        contiguous, paged = flows["contiguous"], flows["paged"]
        assert flows["memory_bytes"] == 10 * 2048 * 524_288
        assert (contiguous["blocks"], contiguous["max_running"]) == (10, 10)
        assert paged["blocks"] == 1280
        assert paged["generated_tokens"] == contiguous["generated_tokens"]
        assert 3 < paged["mean_running"] / contiguous["mean_running"] < 5
        assert 0.2 < contiguous["utilization"] < 0.38
        assert paged["utilization"] > 0.96
        assert paged["steps"] < contiguous["steps"] / 3

    @pytest.mark.long
    def test_the_usual_block_sizes(self, usual: dict[str, Any]) -> None:
        lengths = NormalLengths().draw(0, 200)
        sizes = usual["block_sizes"]
        assert tuple(each["block_size"] for each in sizes) == BLOCK_SIZES
        for each in sizes:
            size = each["block_size"]
            assert each["empty_per_request"] == pytest.approx(np.mean(-np.array(lengths) % size))
            assert each["expected_empty"] == np.mean(range(size))
            # Four standard errors of the mean of 200 numbers, each as likely as the others.
            error = 4 * np.std(range(size)) / 200**0.5
            assert abs(each["empty_per_request"] - each["expected_empty"]) <= error
        of_16 = sizes[BLOCK_SIZES.index(16)]
        in_flow = {k: v for k, v in usual["over_time"]["paged"].items() if k != "timeline"}
        assert of_16["over_time"] == in_flow

    def test_other_settings(self) -> None:
        shape = CacheShape("small", 2, 2, 16, "float32")
        bench = MemoryBench(shape, SMALL, (3, 7), 48, 0, 9, memory_bytes=100_000_000)
        result = plain(bench.run(quiet))
        assert result["sharing"] is None
        assert result["lengths"]["seed"] == 9
        sizes = [each["block_size"] for each in result["block_sizes"]]
        assert sizes == [1, 2, 4, 8, 16, 32, 48, 64, 128]
        flows = result["over_time"]
        assert flows["memory_bytes"] == 100_000_000 // 512 * 512
        assert flows["paged"]["max_running"] == flows["contiguous"]["max_running"] == 7
        assert result["at_once"][1]["tokens"] == sum(SMALL.draw(9, 7))

    @pytest.mark.parametrize("high", [128, 100, 257])
    def test_every_block_size_holds_the_longest_request_in_the_least_memory(
        self, high: int
    ) -> None:
        shape = CacheShape("small", 1, 1, 2, "float32")
        lengths = NormalLengths(mean=high, std=0, low=5, high=high)
        bench = MemoryBench(shape, lengths, (3,), high, 3, memory_bytes=2 * high * 16)
        result = plain(bench.run(quiet))
        assert all(each["over_time"]["max_running"] >= 1 for each in result["block_sizes"])
        with pytest.raises(UsageError, match=r"kv_cache_memory_bytes .* give at least"):
            MemoryBench(shape, lengths, (3,), high, 3, memory_bytes=2 * high * 16 - 1)
