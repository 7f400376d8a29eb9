"""Linear layers whose weights stay in few bits on a GPU, beside the same layers in bfloat16.

    PYTHONPATH=src python benchmarks/gpu_packed_linears.py [--rows 1,16,64,256,2048]

Microseconds a call in bfloat16, and how many times as fast each form of weights is, in turns, each
call a captured graph over weights that no cache holds. Prints Markdown. Needs a GPU.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from pagedrun.kernels.gpu.backend import GpuBackend  # noqa: E402
from pagedrun.kernels.packed_weight import GroupScales, PackedWeight  # noqa: E402

SHAPES = ((24576, 4096), (4096, 12288))  # gate and up, and down, of an 8B model
ROWS = (1, 16, 64, 256, 2048)
COPIES = 4  # of a layer, more than the L2 cache holds
REPEATS = 9

Layers = list[Callable[[Tensor], Tensor]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    counts = [int(word) for word in parser.parse_args().rows.split(",")]
    if not torch.cuda.is_available():
        print("Error: torch sees no GPU here, and this measures nothing else.", file=sys.stderr)
        return 2
    torch.set_default_device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    names = [*forms(64, 256)]
    print(f"| shape | rows | order | bfloat16, us | {' | '.join(names)} |")
    print("|---" * (4 + len(names)) + "|")
    for shape in SHAPES:
        for row_invariant in (False, True):
            measure(shape, counts, row_invariant)
    return 0


def measure(shape: tuple[int, int], counts: list[int], row_invariant: bool) -> None:
    """Print a line for each number of rows."""
    backend, dtype = GpuBackend(), torch.bfloat16
    plain = torch.randn(shape).bfloat16()
    ways: list[Layers] = [
        [backend.pack_linear(plain.clone(), row_invariant=row_invariant) for _ in range(COPIES)]
    ]
    for weight in forms(*shape).values():
        pack = backend.pack_quantized
        ways.append([pack(weight, dtype, row_invariant=row_invariant) for _ in range(COPIES)])
    order = "reproducible" if row_invariant else "any"
    for num_rows in counts:
        dense, *others = speeds(ways, torch.randn(num_rows, shape[1]).bfloat16())
        cells = " | ".join(f"{dense / each:.2f}x" for each in others)
        print(
            f"| {shape[0]} x {shape[1]} | {num_rows} | {order} | {dense:.1f} | {cells} |",
            flush=True,
        )


def forms(out: int, columns: int) -> dict[str, PackedWeight]:
    """Return random weights of each form."""

    def codes(low: int, high: int, width: int = columns) -> Tensor:
        return torch.randint(low, high, (out, width), dtype=torch.int8)

    def halves(groups: int) -> Tensor:
        return (torch.rand(out, groups) / 50 + 0.001).half()

    def six_bits() -> GroupScales:
        return GroupScales(codes(0, 64, columns // 32).byte(), halves(columns // 256))

    zeros = codes(-8, 8, columns // 128)
    six = GroupScales(codes(-128, 127, columns // 16), halves(columns // 256))
    float8 = (torch.rand(out, columns) - 0.5).to(torch.float8_e4m3fn)
    blocks = GroupScales(torch.rand(-(-out // 128), columns // 128))
    powers = torch.randint(110, 127, (out, columns // 32), dtype=torch.uint8)
    floats = codes(0, 16).byte()
    return {
        "AWQ 128": PackedWeight(
            codes(-8, 8), 4, GroupScales(halves(columns // 128)), 128, 1, zeros
        ),
        "Q4_0": PackedWeight(codes(-8, 8), 4, GroupScales(halves(columns // 32)), 32),
        "Q4_K": PackedWeight(codes(0, 16), 4, six_bits(), 32, minima=six_bits()),
        "MXFP4": PackedWeight(floats, 4, GroupScales(powers.view(torch.float8_e8m0fnu)), 32),
        "Q6_K": PackedWeight(codes(-32, 32), 6, six, 16),
        "Q8_0": PackedWeight(codes(-127, 127), 8, GroupScales(halves(columns // 32)), 32),
        "FP8 128x128": PackedWeight(float8, 8, blocks, 128, 128),
    }


def speeds(ways: list[Layers], x: Tensor) -> list[float]:
    """Return the median of microseconds a call for each, in turns."""
    graphs = [captured(layers, x) for layers in ways]
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(REPEATS + 1):
        for kept, layers, graph in zip(times, ways, graphs, strict=True):
            begin, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if repeat:  # the first warms up
                kept.append(begin.elapsed_time(end) / len(layers) * 1e3)
    return [sorted(each)[len(each) // 2] for each in times]


def captured(layers: Layers, x: Tensor) -> torch.cuda.CUDAGraph:
    """Return a graph of one call of each layer."""
    for layer in layers:  # compiles what it launches
        layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer(x)
    return graph


if __name__ == "__main__":
    sys.exit(main())
