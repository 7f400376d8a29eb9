"""Row invariance and speed of linear layers on this CPU, compared with unconstrained oneDNN.

    python benchmarks/cpu_linears.py [--set amx] [--rows 1,16,64] [--quick]

For each kernel set that the processor runs: cases tried with cancelling operands, cases in which a
row's bits changed, and milliseconds a call beside oneDNN with whatever number of rows comes, in
turns, weights streaming from memory. Where oneDNN packs no bfloat16, as without AVX-512, the other
side is `torch.nn.functional.linear`. Prints Markdown.
"""

import argparse
from collections.abc import Callable
from time import perf_counter

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears import onednn_linear
from pagedrun.kernels.cpu.linears.onednn_linear import CancellingOperands
from pagedrun.kernels.kernel_set import KernelSet, processor_name

# [out_features, in_features] of qkv, out, gate and up, down.
SHAPES = {
    "0.6B": ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),
    "1.7B": ((4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144)),
    "8B": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
}
ROWS = (1, 4, 16, 32, 64, 128, 256, 512)
TRIED_ROWS = (*range(1, 301), 384, 511, 512, 513)
STREAMED_BYTES = 200_000_000
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", choices=[*KernelSet.supported()])
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--quick", action="store_true", help="every seventh number of rows")
    given = parser.parse_args()
    configure()
    print(f"{processor_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    if not onednn_linear.can_pack():
        print("oneDNN packs no bfloat16 here: times are beside torch.nn.functional.linear\n")
    counts = [int(word) for word in given.rows.split(",")]
    for kernel_set in given.set or KernelSet.supported():
        print(f"## {kernel_set}\n")
        print(
            "| model | shape | row counts tried | differing | "
            + " | ".join(f"{rows} rows" for rows in counts)
            + " |"
        )
        print("|---" * (4 + len(counts)) + "|")
        for model, shapes in SHAPES.items():
            for shape in shapes:
                tried, differing = invariance(KernelSet(kernel_set), shape, given.quick)
                times = [speed(KernelSet(kernel_set), shape, rows) for rows in counts]
                cells = " | ".join(
                    f"{own:.2f} / {free:.2f} ms, {free / own:.2f}x" for own, free in times
                )
                print(
                    f"| {model} | {shape[0]} x {shape[1]} | {tried} | {differing} | {cells} |",
                    flush=True,
                )
        print()


def invariance(kernel_set: KernelSet, shape: tuple[int, int], quick: bool) -> tuple[int, int]:
    """Return the numbers of batch sizes tried and of those with changed rows."""
    tried = TRIED_ROWS[:: 7 if quick else 1]
    operands = CancellingOperands.make(*shape, TRIED_ROWS[-1], torch.bfloat16, seed=7)
    layer = CpuBackend(kernel_set).pack_linear(operands.weight)
    whole = layer(operands.x)
    differing = sum(
        not torch.equal(layer(operands.x[:rows]), whole[:rows])
        or not torch.equal(layer(operands.x[-rows:]), whole[-rows:])
        for rows in tried
    )
    return len(tried), differing


def speed(kernel_set: KernelSet, shape: tuple[int, int], num_rows: int) -> tuple[float, float]:
    """Return milliseconds per call of the kernel set and of oneDNN: medians, in turns."""
    copies = max(2, min(12, STREAMED_BYTES // (2 * shape[0] * shape[1])))
    weights = [torch.randn(shape).bfloat16() for _ in range(copies)]
    own = [CpuBackend(kernel_set).pack_linear(weight) for weight in weights]
    free = [left_free(weight) for weight in weights]
    x = torch.randn(num_rows, shape[1]).bfloat16()
    calls: tuple[Callable[[], list[Tensor]], ...] = (
        lambda: [layer(x) for layer in own],
        lambda: [layer(x) for layer in free],
    )
    times: tuple[list[float], ...] = ([], [])
    for repeat in range(REPEATS + 1):
        for kept, call in zip(times, calls, strict=True):
            began = perf_counter()
            call()
            if repeat:  # the first warms up
                kept.append((perf_counter() - began) / copies * 1e3)
    middle = [sorted(each)[len(each) // 2] for each in times]
    return middle[0], middle[1]


def left_free(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a linear layer of oneDNN or, where it packs no weight like this one, of torch."""
    if weight.dtype is torch.bfloat16 and not onednn_linear.can_pack():
        return lambda x: functional.linear(x, weight)
    packed = onednn_linear.pack(weight)
    return lambda x: onednn_linear.multiply(x, packed)


if __name__ == "__main__":
    main()
