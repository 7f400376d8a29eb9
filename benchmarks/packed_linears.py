"""Linear layers with quantized weights, compared with the same layers in bfloat16.

    [NUMBA_NUM_THREADS=1] python benchmarks/packed_linears.py [--rows 1,16,256] [--activations int8]
    python benchmarks/packed_linears.py --device cuda [--rows 1,16,64,256,2048]

Prints, as Markdown, the time of a call in bfloat16 and the speed of each weight format relative to
it, in turns, with weights that no cache holds. On a GPU a call is a captured graph, and both orders
of summation are measured. `--clock cpu` counts the processor time of the calling thread instead,
for machines that others use meanwhile, with `OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import torch
from torch import Tensor

from pagedrun.kernels.ops import Backend
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

REPEATS = 7
CLOCKS = {"wall": perf_counter, "cpu": thread_time}

Layers = list[Callable[[Tensor], Tensor]]
# Calls each layer once; returns the seconds.
Timed = Callable[[], float]


class Sizes(NamedTuple):
    """`shapes` of gate and up, and of down; `copies` of a layer, more than the last cache holds."""

    shapes: tuple[tuple[int, int], ...]
    rows: str
    copies: int
    formats: tuple[str, ...]


SIZES = {
    "cpu": Sizes(  # of a 0.6B model
        ((6144, 1024), (1024, 3072)),
        "1,16,256",
        12,
        ("AWQ 128", "Q4_0", "Q4_K", "Q6_K", "Q8_0", "FP8"),
    ),
    "cuda": Sizes(  # of an 8B model
        ((24576, 4096), (4096, 12288)),
        "1,16,64,256,2048",
        4,
        ("AWQ 128", "Q4_0", "Q4_K", "MXFP4", "Q6_K", "Q8_0", "FP8 128x128"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--rows", help="numbers of rows, separated by commas")
    parser.add_argument("--activations", choices=[*Activations], default="auto", help="on a CPU")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true", help="as the steps of gpu.py print it")
    given = parser.parse_args()
    sizes, is_gpu = SIZES[given.device], given.device == "cuda"
    if is_gpu and not torch.cuda.is_available():
        print("Error: torch sees no GPU here.", file=sys.stderr)
        return 2
    torch.set_default_device(given.device)
    backend, name = gpu_backend() if is_gpu else cpu_backend(given.activations)
    table: list[str] = []

    def say(line: str) -> None:
        table.append(line)
        print(line, file=sys.stderr if given.json else sys.stdout, flush=True)

    say(f"{name}, torch {torch.__version__}")
    say("")
    say(f"| shape | rows | order | bfloat16, us | {' | '.join(sizes.formats)} |")
    say("|---" * (4 + len(sizes.formats)) + "|")
    counts = [int(word) for word in (given.rows or sizes.rows).split(",")]
    for shape in sizes.shapes:
        for row_invariant in (False, True) if is_gpu else (False,):
            ways = packed(backend, shape, sizes, row_invariant)
            order = "reproducible" if row_invariant else "default"
            for num_rows in counts:
                x = torch.randn(num_rows, shape[1]).bfloat16()
                clock = CLOCKS[given.clock]
                timed = [captured(way, x) if is_gpu else called(way, x, clock) for way in ways]
                dense, *others = (1e6 * each / sizes.copies for each in in_turns(timed))
                cells = " | ".join(f"{dense / each:.2f}x" for each in others)
                where = f"{shape[0]} x {shape[1]} | {num_rows} | {order}"
                say(f"| {where} | {dense:.1f} | {cells} |")
    if given.json:
        print(json.dumps({"table": table}))
    return 0


def cpu_backend(activations: str) -> tuple[Backend, str]:
    """Return the backend, and a description of its device."""
    from pagedrun.kernels.cpu.backend import CpuBackend
    from pagedrun.kernels.cpu.jit import num_threads
    from pagedrun.kernels.kernel_set import processor_name

    configure()
    backend = CpuBackend(activations=Activations(activations))
    where = f"{processor_name()}, {backend.kernel_set}, {num_threads()} threads"
    return backend, f"{where}, activations {activations}"


def gpu_backend() -> tuple[Backend, str]:
    """Return the backend, and a description of its device."""
    from pagedrun.kernels.gpu.backend import GpuBackend

    return GpuBackend(), torch.cuda.get_device_name()


def packed(
    backend: Backend, shape: tuple[int, int], sizes: Sizes, row_invariant: bool
) -> list[Layers]:
    """Return copies of the layer in bfloat16, and in each format."""
    dtype, weights = torch.bfloat16, formats(*shape)
    plain = torch.randn(shape).to(dtype)
    pack_linear = partial(backend.pack_linear, row_invariant=row_invariant)
    pack = partial(backend.pack_quantized, dtype=dtype, row_invariant=row_invariant)
    copies = range(sizes.copies)
    ways: list[Layers] = [[pack_linear(plain.clone()) for _ in copies]]
    for name in sizes.formats:
        ways.append([pack(weights[name]) for _ in copies])
    return ways


def formats(out: int, columns: int) -> dict[str, PackedWeight]:
    """Return random weights of each format."""

    def codes(low: int, high: int, width: int = columns) -> Tensor:
        return torch.randint(low, high, (out, width), dtype=torch.int8)

    def halves(groups: int) -> Tensor:
        return (torch.rand(out, groups) / 50 + 0.001).half()

    def six_bits() -> GroupScales:
        return GroupScales(codes(0, 64, columns // 32).byte(), halves(columns // 256))

    of_32, of_128 = GroupScales(halves(columns // 32)), GroupScales(halves(columns // 128))
    zeros = codes(-8, 8, columns // 128)
    six = GroupScales(codes(-128, 127, columns // 16), halves(columns // 256))
    float8 = (torch.rand(out, columns) - 0.5).to(torch.float8_e4m3fn)
    blocks = GroupScales(torch.rand(-(-out // 128), columns // 128))
    powers = torch.randint(110, 127, (out, columns // 32), dtype=torch.uint8)
    return {
        "AWQ 128": PackedWeight(codes(-8, 8), 4, of_128, 128, 1, zeros),
        "Q4_0": PackedWeight(codes(-8, 8), 4, of_32, 32),
        "Q4_K": PackedWeight(codes(0, 16), 4, six_bits(), 32, minima=six_bits()),
        "MXFP4": PackedWeight(
            codes(0, 16).byte(), 4, GroupScales(powers.view(torch.float8_e8m0fnu)), 32
        ),
        "Q6_K": PackedWeight(codes(-32, 32), 6, six, 16),
        "Q8_0": PackedWeight(codes(-127, 127), 8, of_32, 32),
        "FP8": PackedWeight(float8, 8, GroupScales(torch.rand(out, 1)), columns),
        "FP8 128x128": PackedWeight(float8, 8, blocks, 128, 128),
    }


def in_turns(ways: list[Timed]) -> list[float]:
    """Return the median of the seconds of each."""
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(REPEATS + 1):
        for kept, timed in zip(times, ways, strict=True):
            seconds = timed()
            if repeat:  # the first warms up
                kept.append(seconds)
    return [median(each) for each in times]


def called(layers: Layers, x: Tensor, clock: Callable[[], float]) -> Timed:
    """Return one call of each layer."""

    def timed() -> float:
        began = clock()
        for layer in layers:
            layer(x)
        return clock() - began

    return timed


def captured(layers: Layers, x: Tensor) -> Timed:
    """Return one call of each layer as a graph of the GPU."""
    for layer in layers:  # compiles what it launches
        layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer(x)

    def timed() -> float:
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds: float = begin.elapsed_time(end) / 1e3
        return seconds

    return timed


if __name__ == "__main__":
    sys.exit(main())
