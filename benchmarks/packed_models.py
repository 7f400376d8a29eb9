"""A whole model whose weights stay in few bits on this CPU, beside the same model in bfloat16.

    python benchmarks/packed_models.py [--shape qwen3-0.6b] [--forms "AWQ 128,Q4_0"] [--turns 5]

Random weights, all linear layers and the head rounded to each form; bfloat16 and the forms take
turns in one process, in an order that is reversed each time. Printed, as Markdown: decode steps
with 1 and 16 rows, and prefill of 512 tokens; medians in milliseconds, and how many times as fast
as bfloat16 each is, the median of the ratios of turns. `int8` is `--quantization int8`.
"""

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from pagedrun.kernels.backend import Backend  # noqa: E402
from pagedrun.kernels.cpu.backend import CpuBackend  # noqa: E402
from pagedrun.kernels.cpu.jit import num_threads  # noqa: E402
from pagedrun.kernels.kernel_set import KernelSet  # noqa: E402
from pagedrun.kernels.linear import Linear  # noqa: E402
from pagedrun.kernels.packed_weight import GroupScales, PackedWeight  # noqa: E402
from pagedrun.kernels.processor import processor_name  # noqa: E402
from pagedrun.paged.bench.runs.backend_wrapper import BackendWrapper  # noqa: E402
from pagedrun.paged.bench.runs.contender import EngineContender  # noqa: E402
from pagedrun.paged.bench.runs.model import BenchModel  # noqa: E402
from pagedrun.paged.bench.runs.op_timer import OpTimer  # noqa: E402
from pagedrun.paged.bench.runs.workload import Workload  # noqa: E402

WORKLOADS = {
    "decode, 1 row": Workload(1, 0, 64, 24),
    "decode, 16 rows": Workload(16, 64, 16, 24),
    "prefill, 512 tokens": Workload(1, 0, 512, 2),
}
CHUNK = 8192  # rows that are rounded at once

Rounding = Callable[[Tensor], PackedWeight]


class RoundingBackend(BackendWrapper):
    """Holds every linear layer in a form of few bits."""

    def __init__(self, backend: Backend, rounded: Rounding) -> None:
        super().__init__(backend)
        self._rounded = rounded

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, row_invariant: bool = False
    ) -> Linear:
        """Return a layer of the rounded weight."""
        return self._backend.pack_quantized(
            self._rounded(weight), weight.dtype, bias, row_invariant=row_invariant
        )


def by_group(bits: int, size: int, *, zeros: bool = False) -> Rounding:
    """Return what rounds to codes with a float16 scale for each group of a row."""

    def rounded(weight: Tensor) -> PackedWeight:
        codes, scales = [], []
        for part in torch.split(weight, CHUNK):
            groups = part.float().view(len(part), -1, size)
            scale = (groups.abs().amax(2) / (2 ** (bits - 1) - 1)).half()
            codes.append((groups / scale.float()[..., None]).round().to(torch.int8).flatten(1))
            scales.append(scale)
        scale = torch.cat(scales)
        zero = torch.zeros(scale.shape, dtype=torch.int8) if zeros else None
        return PackedWeight(torch.cat(codes), bits, GroupScales(scale), size, zeros=zero)

    return rounded


def k_blocks(weight: Tensor) -> PackedWeight:
    """Return codes as Q4_K has them; scales and minima are of the right kind, but alike."""
    codes = [
        (part.float() * (4 * weight.shape[1] ** 0.5) + 8).round().clamp(0, 15).to(torch.int8)
        for part in torch.split(weight, CHUNK)
    ]
    groups, factors = weight.shape[1] // 32, weight.shape[1] // 256
    step = weight.shape[1] ** -0.5 / 4 / 32

    def alike(factor: float) -> GroupScales:
        values = torch.full((len(weight), groups), 32, dtype=torch.uint8)
        return GroupScales(values, torch.full((len(weight), factors), factor).half())

    return PackedWeight(torch.cat(codes), 4, alike(step), 32, minima=alike(8 * step))


FORMS: dict[str, Rounding] = {
    "AWQ 128": by_group(4, 128, zeros=True),
    "Q4_0": by_group(4, 32),
    "Q4_K": k_blocks,
    "Q8_0": by_group(8, 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--forms", default="AWQ 128", help=f"of {[*FORMS, 'int8']}")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    configure()
    model = BenchModel.from_shape(arguments.shape)
    names = ["bfloat16", *arguments.forms.split(",")]
    contenders = {name: contender(model, name) for name in names}
    for each in contenders.values():
        each.warm_up(Workload(1, 0, 8, 2))
    print(
        f"{arguments.shape}, {processor_name()}, kernel set {KernelSet.best()}, "
        f"{num_threads()} threads, torch {torch.__version__}, {arguments.turns} turns\n"
    )
    sizes = [each.engine.loaded.model.num_bytes / 2**20 for each in contenders.values()]
    print(f"| | {' | '.join(names)} |\n|---{'|---' * len(names)}|")
    print(f"| weights, MiB | {' | '.join(f'{size:.0f}' for size in sizes)} |")
    for title, workload in WORKLOADS.items():
        times = measured(contenders, workload, arguments.turns, is_decode="decode" in title)
        plain = times["bfloat16"]
        cells = [f"{median(plain):.1f} ms"]
        for name in names[1:]:
            ratios = [one / other for one, other in zip(plain, times[name], strict=True)]
            cells.append(f"{median(ratios):.2f}x")
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def contender(model: BenchModel, name: str) -> EngineContender:
    """Return an engine whose linear layers are in a form."""
    backend = CpuBackend(KernelSet.best())
    timer = OpTimer(RoundingBackend(backend, FORMS[name]) if name in FORMS else backend)
    quantization = "int8" if name == "int8" else "auto"
    flags: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 1024, "prefix_caching": False}
    engine = model.engine(
        timer.kernels, quantization=quantization, kv_cache_memory_bytes=2**28, **flags
    )
    return EngineContender(name, engine, timer)


def measured(
    contenders: dict[str, EngineContender], workload: Workload, turns: int, *, is_decode: bool
) -> dict[str, list[float]]:
    """Return milliseconds of each turn: the median decode step, or all of the prompt's."""
    requests = workload.requests(next(iter(contenders.values())).engine.loaded.config.vocab_size)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        order = list(contenders.items())
        for name, each in order if turn % 2 == 0 else reversed(order):
            figures, _ = each.run(requests)
            if is_decode:
                assert figures.decode_step is not None
                times[name].append(figures.decode_step.median * 1e3)
            else:
                times[name].append(figures.prefill_s * 1e3)
    return times


if __name__ == "__main__":
    main()
