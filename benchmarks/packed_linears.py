"""Linear layers whose weights stay in few bits on this CPU, beside the same layers in bfloat16.

    [NUMBA_NUM_THREADS=1] python benchmarks/packed_linears.py [--rows 1,16,256]

Milliseconds a call in bfloat16, and how many times as fast each form of weights is, in turns,
weights streaming from memory. Prints Markdown. `--clock cpu` counts processor time of the calling
thread instead, for machines that others use meanwhile, with `OMP_NUM_THREADS=1
NUMBA_NUM_THREADS=1`.
"""

import argparse
from collections.abc import Callable
from time import perf_counter, thread_time

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from pagedrun.kernels.cpu.backend import CpuBackend  # noqa: E402
from pagedrun.kernels.cpu.jit import num_threads  # noqa: E402
from pagedrun.kernels.packed_weight import GroupScales, PackedWeight  # noqa: E402
from pagedrun.kernels.processor import processor_name  # noqa: E402

SHAPES = ((6144, 1024), (1024, 3072))  # gate and up, and down, of a 0.6B model
ROWS = (1, 16, 256)
COPIES = 12
REPEATS = 7
CLOCKS = {"wall": perf_counter, "cpu": thread_time}

Layers = list[Callable[[Tensor], Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    given = parser.parse_args()
    counts, clock = [int(word) for word in given.rows.split(",")], CLOCKS[given.clock]
    configure()
    backend = CpuBackend()
    where = f"{processor_name()}, {backend.kernel_set}, {num_threads()} threads"
    print(f"{where}, torch {torch.__version__}\n")
    print(f"| shape | rows | bfloat16, ms | {' | '.join(forms(32, 256))} |")
    print("|---" * (3 + len(forms(32, 256))) + "|")
    for shape in SHAPES:
        plain = torch.randn(shape).bfloat16()
        ways: list[Layers] = [[backend.pack_linear(plain) for _ in range(COPIES)]]
        for weight in forms(*shape).values():
            layers = [backend.pack_quantized(weight, torch.bfloat16) for _ in range(COPIES)]
            ways.append(list(layers))
        for num_rows in counts:
            dense, *others = speeds(ways, torch.randn(num_rows, shape[1]).bfloat16(), clock)
            cells = " | ".join(f"{dense / each:.2f}x" for each in others)
            print(f"| {shape[0]} x {shape[1]} | {num_rows} | {dense:.2f} | {cells} |", flush=True)


def forms(out: int, columns: int) -> dict[str, PackedWeight]:
    """Return random weights of each form."""

    def codes(low: int, high: int, width: int = columns) -> Tensor:
        return torch.randint(low, high, (out, width), dtype=torch.int8)

    def halves(groups: int) -> Tensor:
        return (torch.rand(out, groups) / 50 + 0.001).half()

    def six_bits() -> GroupScales:
        return GroupScales(codes(0, 64, columns // 32).byte(), halves(columns // 256))

    zeros = codes(-8, 8, columns // 128)
    float8 = (torch.rand(out, columns) - 0.5).to(torch.float8_e4m3fn)
    six = GroupScales(codes(-128, 127, columns // 16), halves(columns // 256))
    return {
        "AWQ 128": PackedWeight(
            codes(-8, 8), 4, GroupScales(halves(columns // 128)), 128, 1, zeros
        ),
        "Q4_0": PackedWeight(codes(-8, 8), 4, GroupScales(halves(columns // 32)), 32),
        "Q4_K": PackedWeight(codes(0, 16), 4, six_bits(), 32, minima=six_bits()),
        "Q6_K": PackedWeight(codes(-32, 32), 6, six, 16),
        "Q8_0": PackedWeight(codes(-127, 127), 8, GroupScales(halves(columns // 32)), 32),
        "FP8": PackedWeight(float8, 8, GroupScales(torch.rand(out, 1)), columns),
    }


def speeds(ways: list[Layers], x: Tensor, clock: Callable[[], float]) -> list[float]:
    """Return the median of milliseconds a call for each, in turns."""
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(REPEATS + 1):
        for kept, layers in zip(times, ways, strict=True):
            began = clock()
            for layer in layers:
                layer(x)
            if repeat:  # the first warms up
                kept.append((clock() - began) / len(layers) * 1e3)
    return [sorted(each)[len(each) // 2] for each in times]


if __name__ == "__main__":
    main()
