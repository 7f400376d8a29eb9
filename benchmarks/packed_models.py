"""A model with quantized weights on this CPU, compared with the same model in bfloat16.

    python benchmarks/packed_models.py [--shape qwen3-0.6b] [--forms "AWQ 128"] [--turns 5]

Random weights, all linear layers and the head rounded to each form; bfloat16 and the forms take
turns in one process, in an order that is reversed each time. Printed, as Markdown: a decode step of
1 and of 16 rows (what 16 more tokens take, by their number), and a prompt of 512 tokens; medians in
milliseconds for bfloat16, and how many times as fast each form is, the median of the ratios of
turns. `int8` is `--quantization int8`; a form with ` exact` behind it has exact activations, else
int8 ones where these are the default. `--clock cpu` counts the processor time of the process
instead, for machines that others use meanwhile; it says most with one thread:
`OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any

from pagedrun.kernels.environment.threads import configure, prepare_environment

prepare_environment()  # before torch is imported

import torch
from torch import Tensor

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.jit import num_threads
from pagedrun.kernels.kernel_set import KernelSet, processor_name
from pagedrun.kernels.ops import Backend, Linear
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight
from pagedrun.paged.bench.contender import EngineContender
from pagedrun.paged.bench.op_timer import BackendWrapper, OpTimer
from pagedrun.paged.bench.workload import BenchModel, Workload

FEW_TOKENS, MORE_TOKENS = 3, 19
DECODE_ROWS = (1, 16)
PROMPT = Workload(1, 0, 512, 2)
CLOCKS = {"wall": perf_counter, "cpu": process_time}
CHUNK = 8192  # rows that are rounded at once

Rounding = Callable[[Tensor], PackedWeight]


class RoundingBackend(BackendWrapper):
    """Backend with quantized linear layers."""

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
    """Return a rounding to codes with a float16 scale for each group of a row."""

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
    """Return codes of Q4_K with constant scales and minima."""
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
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    configure()
    model = BenchModel.from_shape(arguments.shape)
    names = ["bfloat16", *arguments.forms.split(",")]
    contenders = {name: contender(model, name) for name in names}
    for each in contenders.values():
        each.warm_up(Workload(1, 0, 8, 2))
    print(
        f"{arguments.shape}, {processor_name()}, kernel set {KernelSet.best()}, "
        f"{num_threads()} threads, torch {torch.__version__}, {arguments.turns} turns, "
        f"{arguments.clock} clock\n"
    )
    sizes = [each.engine.loaded.model.num_bytes / 2**20 for each in contenders.values()]
    print(f"| | {' | '.join(names)} |\n|---{'|---' * len(names)}|")
    print(f"| weights, MiB | {' | '.join(f'{size:.0f}' for size in sizes)} |")
    turns = Turns(contenders, arguments.turns, CLOCKS[arguments.clock])
    for rows in DECODE_ROWS:
        print_row(f"decode, rows: {rows}", turns.decode_steps(rows))
    print_row("prompt of 512 tokens", turns.runs(PROMPT))


def print_row(title: str, times: dict[str, list[float]]) -> None:
    """Print the median of bfloat16, and the medians of the others' ratios to it."""
    plain, *others = times.values()
    ratios = [[one / of for one, of in zip(plain, other, strict=True)] for other in others]
    cells = " | ".join(f"{median(each):.2f}x" for each in ratios)
    print(f"| {title} | {median(plain) * 1e3:.1f} ms | {cells} |", flush=True)


def contender(model: BenchModel, name: str) -> EngineContender:
    """Return an engine whose linear layers are in a form."""
    form = name.removesuffix(" exact")
    backend = CpuBackend(activations=Activations.AUTO if form == name else Activations.EXACT)
    timer = OpTimer(RoundingBackend(backend, FORMS[form]) if form in FORMS else backend)
    quantization = "int8" if name == "int8" else "auto"
    flags: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 1024, "prefix_caching": False}
    flags["speculate"] = "off"  # steps are timed by their number
    engine = model.engine(
        timer.kernels, quantization=quantization, kv_cache_memory_bytes=2**28, **flags
    )
    return EngineContender(name, engine, timer)


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds by `clock` of runs of each contender, in turns; the first one only warms up."""

    contenders: dict[str, EngineContender]
    num_turns: int
    clock: Callable[[], float]

    def decode_steps(self, rows: int) -> dict[str, list[float]]:
        """Return the seconds of a decode step of so many rows, one a turn."""
        few, more = (
            self.runs(Workload(rows, 0, 16, tokens)) for tokens in (FEW_TOKENS, MORE_TOKENS)
        )
        steps = MORE_TOKENS - FEW_TOKENS
        return {name: [(long - median(few[name])) / steps for long in more[name]] for name in few}

    def runs(self, workload: Workload) -> dict[str, list[float]]:
        """Return the seconds of a workload, one a turn."""
        first = next(iter(self.contenders.values()))
        requests = workload.requests(first.engine.loaded.config.vocab_size)
        times: dict[str, list[float]] = {name: [] for name in self.contenders}
        for turn in range(self.num_turns + 1):
            order = list(self.contenders.items())
            for name, each in order if turn % 2 else reversed(order):
                began = self.clock()
                each.run(requests)
                if turn:
                    times[name].append(self.clock() - began)
        return times


if __name__ == "__main__":
    main()
