"""Linear layers in int8 on this CPU, beside the same layers in bfloat16.

    python benchmarks/int8_linears.py [--rows 1,16,64,256]

Milliseconds a call of each kind of products that the processor runs, in turns with bfloat16, the
quantising of the rows included, weights streaming from memory. Prints Markdown.
"""

import argparse
from collections.abc import Callable
from time import perf_counter

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from pagedrun.kernels import cpu  # noqa: E402
from pagedrun.kernels.cpu.linears.int8_chains import Int8Chains  # noqa: E402
from pagedrun.kernels.cpu.linears.int8_linear import Products  # noqa: E402
from pagedrun.kernels.cpu.linears.int8_tiles import Int8Tiles  # noqa: E402
from pagedrun.kernels.cpu.linears.int8_words import Int8Words  # noqa: E402
from pagedrun.kernels.kernel_set import KernelSet  # noqa: E402
from pagedrun.kernels.processor import has_features, processor_name  # noqa: E402

SHAPES = ((6144, 1024), (1024, 3072))  # gate and up, and down, of a 0.6B model
ROWS = (1, 16, 64, 256)
COPIES = 24
REPEATS = 5

Layers = list[Callable[[Tensor], Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    counts = [int(word) for word in parser.parse_args().rows.split(",")]
    configure()
    kinds = runnable()
    print(f"{processor_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print(f"| shape | rows | bfloat16, ms | {' | '.join(kinds)} |")
    print("|---" * (3 + len(kinds)) + "|")
    for shape in SHAPES:
        weights = [torch.randn(shape).bfloat16() for _ in range(COPIES)]
        codes = [cpu.quantize_rows(weight) for weight in weights]
        ways: list[Layers] = [[cpu.PackedLinear(weight) for weight in weights]]
        for products in kinds.values():
            ways.append([cpu.Int8Linear(*each, products=products) for each in codes])
        for num_rows in counts:
            plain, *others = speeds(ways, torch.randn(num_rows, shape[1]).bfloat16())
            cells = " | ".join(f"{each:.2f}, {plain / each:.2f}x" for each in others)
            print(f"| {shape[0]} x {shape[1]} | {num_rows} | {plain:.2f} | {cells} |", flush=True)


def runnable() -> dict[str, type[Products]]:
    """Return the kinds of products that run here, by name, fastest first."""
    kinds: dict[str, type[Products]] = {}
    if KernelSet.AMX.is_supported:
        kinds["AMX"] = Int8Tiles
    if has_features("avx512f", "avx512vnni"):
        kinds["AVX512-VNNI"] = Int8Words
    return {**kinds, "float32": Int8Chains}


def speeds(ways: list[Layers], x: Tensor) -> list[float]:
    """Return the median of milliseconds a call for each, in turns."""
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(REPEATS + 1):
        for kept, layers in zip(times, ways, strict=True):
            began = perf_counter()
            for layer in layers:
                layer(x)
            if repeat:  # the first warms up
                kept.append((perf_counter() - began) / len(layers) * 1e3)
    return [sorted(each)[len(each) // 2] for each in times]


if __name__ == "__main__":
    main()
