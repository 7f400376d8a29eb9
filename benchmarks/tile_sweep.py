"""Finds the fastest tiles of the attention kernels on this GPU, and writes the table they read.

    python benchmarks/tile_sweep.py --device cuda                  # print the best of each shape
    python benchmarks/tile_sweep.py --device cuda --shape qwen3-8b --budget 300
    python benchmarks/tile_sweep.py --write runs/*.json            # write kernels/gpu's table
    python benchmarks/tile_sweep.py --list                         # the candidates, without a GPU

A candidate must give what the rule's tile gives, within the tolerance of the kernels' tests, or it
does not count; it is timed in turns with it, over several sizes,
and written where it is faster by more than 3 % in the geometric mean. Tiles that must give a row
the same bytes (for few rows and for many) are one candidate: they have as many keys each.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pagedrun.kernels.gpu import chip as chip_module
from pagedrun.kernels.gpu.attention.prefill_attention import tile_for
from pagedrun.kernels.gpu.attention.prefix_attention import matrix_heights
from pagedrun.kernels.gpu.chip import Chip
from pagedrun.kernels.gpu.measured_tiles import MEASURED
from pagedrun.kernels.gpu.tile_table import Numbers, TileTable, chip_name, entry_name
from pagedrun.paged.bench.kernels.decode_point import DecodePoint
from pagedrun.paged.bench.kernels.kernel_context import KernelContexts
from pagedrun.paged.bench.kernels.kernel_point import KernelCall, KernelPoint
from pagedrun.paged.bench.kernels.kernel_shape import KernelShape
from pagedrun.paged.bench.kernels.prefill_point import PrefillPoint
from pagedrun.paged.bench.kernels.prefix_point import ONCE, PrefixPoint
from pagedrun.paged.bench.kernels.roofline import Roofline
from pagedrun.paged.bench.kernels.stopwatch import GpuStopwatch, Stopwatch
from pagedrun.paged.bench.model_shapes import SHAPE_NAMES, Shape
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.devices.device_choice import choose_device

TABLE = Path(chip_module.__file__).with_name("measured_tiles.py")
RULE = "rule"
FASTER_BY = 1.03  # less is noise
MOST_OFF = 1.2e-2  # by which a row may differ, as a part of its length
BLOCK_SIZE, TURNS, CACHE_BYTES = 64, 9, 64 << 20
SHAPES = ("qwen3-0.6b", "qwen3-8b")
NO_ROOF = Roofline(1.0, 1.0, 1.0, 1.0, launch_s=0.0, dtype="bfloat16")

Tiles = tuple[Numbers, ...]
Entry = tuple[str, str]  # op, name in the table


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is tried for one entry of the table: its candidates, and the sizes that they run at."""

    op: str
    name: str
    candidates: tuple[Tiles, ...]
    points: tuple[DecodePoint | PrefixPoint | PrefillPoint, ...]
    call: str  # which call of a point is the op


def sweeps_of(shape: KernelShape, on: Chip) -> list[Sweep]:
    """Return what is tried for the layers of a model."""
    dim, dtype = shape.head_dim, torch.bfloat16
    group = shape.num_heads // shape.num_kv_heads
    heights = matrix_heights(dim, dtype, dtype, on)
    rule = tile_for(dim, group, dtype, False, 4096, on)
    tall = [rule.num_rows] if on.matrix_unit != "wgmma" or dim > 128 else [128, 64]
    decode = tuple(((keys, w, s),) for keys, w, s in product((32, 64, 128), (2, 4, 8), (2, 3, 5)))
    prefix = tuple(
        tuple((keys, max(4, rows // 16), stages) for rows in heights)
        for keys, stages in product((32, 64, 128), (2, 3, 4, 5))
    )
    prefill = tuple(
        tuple((rows, keys, max(4, rows // 16), stages) for rows in tall)
        for keys, stages in product((32, 64, 128), (2, 3, 4))
    )
    decode_points = (DecodePoint(512, 256), DecodePoint(192, 1024), DecodePoint(4096, 32))
    prefix_points = (PrefixPoint(4096, 1024), PrefixPoint(4096, 64), PrefixPoint(1024, 256))
    prefill_points = (PrefillPoint(4096, 0), PrefillPoint(16, 4096), PrefillPoint(1024, 4096))
    return [
        Sweep("decode", entry_name(dim, dtype, dtype), decode, decode_points, "paged v1"),
        Sweep("prefix", entry_name(dim, BLOCK_SIZE, dtype, dtype), prefix, prefix_points, ONCE),
        Sweep("prefill", entry_name(dim, group, dtype, 0), prefill, prefill_points, "paged"),
    ]


def main() -> int:
    """Measure, list or write; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", action="append", choices=SHAPE_NAMES, help="repeatable")
    parser.add_argument("--budget", type=float, default=300.0, metavar="S")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", type=Path, nargs="+", metavar="FILE")
    given = parser.parse_args()
    if given.write:
        results = [each for path in given.write for each in found(json.loads(path.read_text()))]
        TABLE.write_text(table_source(merged(MEASURED, results)), encoding="utf-8")
        return 0
    shapes = [kernel_shape(name) for name in given.shape or SHAPES]
    if given.list:
        on = chip_module.chip_of(torch.device("cpu"))
        sweeps = [sweep for shape in shapes for sweep in sweeps_of(shape, on)]
        listed = [{"op": s.op, "name": s.name, "candidates": s.candidates} for s in sweeps]
        print(json.dumps({"candidates": listed}))
        return 0
    device = choose_device(given.device)
    print(json.dumps(measure(device, shapes, given.budget)))
    return 0


def kernel_shape(name: str) -> KernelShape:
    """Return the layers of a named model."""
    return KernelShape.of(name, Shape.named(name).config, BLOCK_SIZE)


def found(result: Any) -> list[Any]:
    """Return the sweeps of a result of this script, or of a part of `gpu.py` that has one."""
    if "sweeps" in result:
        return [result]
    results = [step.get("result") for step in result["steps"]]
    return [each for each in results if isinstance(each, dict) and "sweeps" in each]


@contextmanager
def tiles(on: Chip, op: str, name: str, candidate: Tiles | None) -> Iterator[None]:
    """Let the kernels take a candidate, None: what the rule says."""
    table = TileTable({} if candidate is None else {op: {name: candidate}})
    genuine = chip_module.chip_of
    chip_module.chip_of = lambda device: replace(on, tiles=table)  # type: ignore[assignment]
    try:
        yield
    finally:
        chip_module.chip_of = genuine


def measure(device: Device, shapes: list[KernelShape], budget_s: float) -> dict[str, Any]:
    """Time all candidates; what the budget does not allow is left out and named."""
    on = chip_module.chip_of(device.torch_device)
    stopwatch = GpuStopwatch(CACHE_BYTES)
    began, swept, results = perf_counter(), set[Entry](), []
    for shape in shapes:
        contexts = KernelContexts(shape, device.torch_device, torch.bfloat16)
        for sweep in sweeps_of(shape, on):
            entry = (sweep.op, sweep.name)
            if entry in swept:  # two models with heads alike
                continue
            swept.add(entry)
            line: dict[str, Any] = {"op": sweep.op, "name": sweep.name, "model": shape.name}
            if perf_counter() - began > budget_s:
                results.append({**line, "skipped": "no time left"})
                continue
            with torch.inference_mode():
                figures = [timed(sweep, p, contexts, device, on, stopwatch) for p in sweep.points]
            results.append({**line, **best_of(sweep.candidates, figures)})
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    name = chip_name(on.backend, on.arch)
    return {"chip": name, "sweeps": results, "table": lines(results)}


def timed(
    sweep: Sweep,
    point: Any,
    contexts: KernelContexts,
    device: Device,
    on: Chip,
    stopwatch: Stopwatch,
) -> dict[str, float]:
    """Return the seconds of the candidates at one size, of those that run and are right."""
    built = point.build(contexts, device.kernels)  # once: all must give the same
    call = next(each for each in built.calls if each.name == sweep.call)

    def call_of(candidate: Tiles | None) -> KernelCall:
        def run() -> Any:
            with tiles(on, sweep.op, sweep.name, candidate):
                return call.call()

        return KernelCall(RULE if candidate is None else str(candidate), run, call.work)

    calls = [call_of(each) for each in (None, *sweep.candidates)]
    truth: Callable[[], Any] = calls[0].call
    figures = KernelPoint(point.place, calls, truth=truth).measure(stopwatch, TURNS, NO_ROOF)
    return {
        name: each["seconds"]["median"]
        for name, each in figures["contenders"].items()
        if "seconds" in each and (each["difference"] or 0.0) <= MOST_OFF
    }


def best_of(candidates: tuple[Tiles, ...], figures: list[dict[str, float]]) -> dict[str, Any]:
    """Return the candidate that is the fastest over all sizes, and what it is worth."""
    gains: dict[Tiles, float] = {}
    for candidate in candidates:
        name = str(candidate)
        if all(name in each and RULE in each for each in figures):
            ratios = [each[RULE] / each[name] for each in figures]
            gains[candidate] = math.exp(sum(map(math.log, ratios)) / len(ratios))
    best = max(gains, key=lambda each: gains[each], default=None)
    return {
        "best": best,
        "gain": gains[best] if best is not None else None,
        "seconds": figures,
        "ran": len(gains),
        "of": len(candidates),
    }


def lines(results: list[dict[str, Any]]) -> list[str]:
    """Return the results as a table."""
    shown = ["| op | shape | best | faster by | ran |", "|:--|:--|:--|--:|--:|"]
    for each in results:
        place = f"| {each['op']} | {each['name']} "
        if each.get("best") is None:
            shown.append(f"{place}| {each.get('skipped', 'none ran')} | | |")
            continue
        ran = f"{each['ran']} of {each['of']}"
        shown.append(f"{place}| {each['best']} | {each['gain'] - 1:.1%} | {ran} |")
    return shown


def merged(before: Any, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table with what was measured; where the rule is as good, its entry goes."""
    table: dict[str, Any] = {
        chip: {op: dict(entries) for op, entries in ops.items()} for chip, ops in before.items()
    }
    for result in results:
        for each in result["sweeps"]:
            entries = table.setdefault(result["chip"], {}).setdefault(each["op"], {})
            if each.get("best") is None:
                continue
            entries.pop(each["name"], None)
            if each["gain"] > FASTER_BY:
                entries[each["name"]] = tuple(tuple(tile) for tile in each["best"])
    return table


def table_source(table: dict[str, Any]) -> str:
    """Return the module that holds the table."""
    text = [
        '"""What `benchmarks/tile_sweep.py` measured, by chip, op and entry: its work."""',
        "",
        "MEASURED: dict[str, dict[str, dict[str, tuple[tuple[int, ...], ...]]]] = {",
    ]
    for chip, ops in sorted(table.items()):
        text.append(f'    "{chip}": {{')
        for op, entries in sorted(ops.items()):
            text.append(f'        "{op}": {{')
            text += [f'            "{name}": {each},' for name, each in sorted(entries.items())]
            text.append("        },")
        text.append("    },")
    return "\n".join([*text, "}", ""])


if __name__ == "__main__":
    sys.exit(main())
