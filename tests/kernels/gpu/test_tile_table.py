"""The table of measured tiles: what is in it is taken, and what a sweep writes can be read."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import tile_sweep
from pagedrun.kernels.gpu import chip
from pagedrun.kernels.gpu.attention.decode_attention import decode_tile
from pagedrun.kernels.gpu.attention.prefill_attention import tile_for
from pagedrun.kernels.gpu.attention.prefix_attention import matrix_heights, prefix_tile
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.gpu.tile_table import TileTable
from pagedrun.paged.bench.kernels.decode_point import DecodePoint
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.prefill_point import PrefillPoint
from pagedrun.paged.bench.kernels.prefix_point import PrefixPoint
from pagedrun.paged.bench.kernels.stopwatch import HostStopwatch
from pagedrun.paged.execution.devices.device import Device

ON = chip.chip_of(torch.device("cpu"))
BF16 = torch.bfloat16


def with_tiles(op: str, name: str, *tiles: tuple[int, ...]) -> chip.Chip:
    return replace(ON, tiles=TileTable({op: {name: tiles}}))


def test_decode_takes_what_was_measured() -> None:
    on = with_tiles("decode", "128-bfloat16-bfloat16", (32, 2, 3))
    tile = decode_tile(128, BF16, BF16, on)
    assert (tile.tile, tile.num_warps, tile.num_stages) == (32, 2, 3)
    for other in ((64, BF16, BF16), (128, BF16, torch.int8), (128, torch.float16, torch.float16)):
        assert decode_tile(*other, on) == decode_tile(*other, ON)


def test_each_height_of_prefix_attention_takes_its_own() -> None:
    on = with_tiles("prefix", "128-64-bfloat16-bfloat16", (128, 4, 2), (128, 8, 3))
    assert matrix_heights(128, BF16, BF16, on) == (64, 128)
    low, high = (prefix_tile(rows, 128, 64, BF16, BF16, on) for rows in (64, 128))
    assert (low.rows, low.keys, low.num_warps, low.num_stages) == (64, 128, 4, 2)
    assert (high.rows, high.keys, high.num_warps, high.num_stages) == (128, 128, 8, 3)
    assert prefix_tile(64, 128, 16, BF16, BF16, on) == prefix_tile(64, 128, 16, BF16, BF16, ON)


def test_prefill_takes_one_for_many_rows_and_one_for_few() -> None:
    on = with_tiles("prefill", "128-4-bfloat16-0", (128, 32, 8, 2), (64, 32, 4, 2))
    many, few = (tile_for(128, 4, BF16, False, rows, on) for rows in (4096, 4))
    assert (many.num_rows, few.num_rows) == (128, 64)
    assert many.num_keys == few.num_keys == 32
    one = with_tiles("prefill", "256-4-bfloat16-0", (64, 64, 8, 2))
    assert tile_for(256, 4, BF16, False, 4, one) == tile_for(256, 4, BF16, False, 4096, one)


def test_tables_are_part_of_what_decides_the_bytes() -> None:
    assert TileTable().digest == ""
    tables = [TileTable({"decode": {"a": ((keys, 4, 3),)}}) for keys in (32, 64)]
    assert len({table.digest for table in tables}) == 2
    assert replace(ON, tiles=tables[0]) == ON, "it is the same chip"


class TestSweep:
    def result(self, best: Any, gain: float) -> dict[str, Any]:
        line = {"op": "decode", "name": "128-bfloat16-bfloat16", "best": best, "gain": gain}
        return {"chip": "sm_90", "sweeps": [line]}

    def test_what_is_written_can_be_read(self) -> None:
        written = tile_sweep.merged({}, [self.result([[64, 4, 5]], 1.2)])
        module: dict[str, Any] = {}
        exec(tile_sweep.table_source(written), module)
        assert module["MEASURED"] == written
        entries = TileTable(module["MEASURED"]["sm_90"])
        assert entries.find("decode", "128-bfloat16-bfloat16") == ((64, 4, 5),)

    def test_where_the_rule_is_as_good_it_stays(self) -> None:
        before = tile_sweep.merged({}, [self.result([[64, 4, 5]], 1.2)])
        after = tile_sweep.merged(before, [self.result([[32, 4, 5]], 1.02)])
        assert after == {"sm_90": {"decode": {}}}

    @pytest.mark.parametrize("op", ["decode", "prefix", "prefill"])
    def test_candidates_are_run_and_compared(self, op: str) -> None:
        """In the interpreter: of each op the rule's tile, one that works and one that cannot."""
        shape = tile_sweep.kernel_shape("tiny")
        small: dict[str, Any] = {
            "decode": DecodePoint(80, 2),
            "prefix": PrefixPoint(128, 2),
            "prefill": PrefillPoint(3, 70),
        }
        (sweep,) = (each for each in tile_sweep.sweeps_of(shape, ON) if each.op == op)
        good, place = sweep.candidates[0], 1 if op == "prefill" else 0
        bad = tuple((*tile[:place], 24, *tile[place + 1 :]) for tile in good)  # no power of two
        tried = replace(sweep, candidates=(good, bad))
        device = Device(torch.device("cpu"), GpuBackend(), async_scheduling=False)
        contexts = KernelContexts(shape, device.torch_device, BF16)
        watch = HostStopwatch(1 << 10)
        seconds = tile_sweep.timed(tried, small[op], contexts, device, ON, watch)
        assert set(seconds) == {tile_sweep.RULE, str(good)}
        assert chip.chip_of(torch.device("cpu")).tiles == TileTable(), "the kernels have their own"

    def test_a_candidate_that_fails_at_one_size_is_not_the_best(self) -> None:
        figures = [
            {"rule": 2.0, "((32, 4, 2),)": 1.0, "((64, 4, 2),)": 1.6},
            {"rule": 2.0, "((64, 4, 2),)": 1.6},
        ]
        best = tile_sweep.best_of((((32, 4, 2),), ((64, 4, 2),)), figures)
        assert (best["best"], best["ran"], best["of"]) == (((64, 4, 2),), 1, 2)
        assert abs(best["gain"] - 1.25) < 1e-9

    def test_candidates_that_must_agree_have_as_many_keys(self) -> None:
        for sweep in tile_sweep.sweeps_of(tile_sweep.kernel_shape("qwen3-8b"), ON):
            key = 1 if sweep.op == "prefill" else 0
            for candidate in sweep.candidates:
                assert len({tile[key] for tile in candidate}) == 1
