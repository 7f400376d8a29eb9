"""`pagedrun bench kernels`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.options.kernels_options import KernelsOptions
from pagedrun.cli.bench.options.model_options import DEFAULT_SHAPE
from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.bench.sheets.kernels_sheets import (
    describe_roofline,
    describe_shape,
    describe_sizes,
    kernels_sheets,
)
from pagedrun.cli.options.flags import Flags, Given
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.paged.values.engine_config import EngineConfig

if TYPE_CHECKING:
    from pagedrun.cli.bench.session import View
    from pagedrun.paged.bench.kernels.kernel_sweep import KernelSweep
    from pagedrun.paged.bench.kernels.kernels import KernelsBench, KernelsBenchFigures


class _Defaults(NamedTuple):
    block_size: int
    repeat: int
    is_full: bool


# A GPU is faster, and its times are shorter.
DEFAULTS = {"cpu": _Defaults(16, 5, False), "cuda": _Defaults(64, 20, True)}
BUDGETS = (60.0, 480.0)  # of the short sweep, of the full one

HELP = f"""Measure the kernels alone, compared with the limits of the device.

decode: one query per row over contexts of 512 to 32k tokens, with one program for a whole \
context (v1) or several (v2) if the device has both, compared with dense attention in torch on \
the same keys and values. prefix: a shared prefix read once, or by each row. prefill: chunks of a \
prompt. ops: the rest of a layer, and sampling, compared with plain torch.

Kernels are first checked against each other (a wrong kernel gets no figure), then measured in \
turns. A copy and a matrix product of the same run are the roofline. Caches are emptied before \
each call. Without --shape, a layer of {DEFAULT_SHAPE} is measured; for Llama 70B, pass --heads \
64 --kv-heads 8 --head-dim 128.

Examples:

  pagedrun bench kernels
  pagedrun bench kernels --only decode --context 512,8192,32768 --batch 1
  pagedrun bench kernels --only prefix --prefix 1024,4096 --group 16,256 --repeat 9
  pagedrun bench kernels --device cuda --shape qwen3-8b --json > kernels.json
  pagedrun bench kernels --full --budget 600 --save kernels.md
"""


_OWN = Flags.of(KernelsOptions)
FLAGS = (
    _OWN.only("shape", "heads", "kv_heads", "head_dim", "block_size")
    + GENERATE.only("device", "kernel_set", "dtype")
    + _OWN.only(
        *("contexts", "batches", "prefixes", "groups", "chunks", "befores"),
        *("full", "only", "repeat", "budget"),
    )
    + Flags.of(ResultOptions)
)
# As they are typed, which is not as their fields are called.
_SWEPT = {
    "contexts": "--context",
    "batches": "--batch",
    "prefixes": "--prefix",
    "groups": "--group",
    "chunks": "--chunk",
    "befores": "--before",
}


def _kernels(context: typer.Context, given: Given) -> None:
    """Measure the kernels alone, beside what the device can do at all."""
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.options.reading import read

    with exits.boundary():
        session = Session.of(read(ResultOptions, given))
        bench = kernels_bench(
            read(KernelsOptions, given), EngineConfig(Path(), **_engine_values(given))
        )
        session.finish(session.measure(kernels_view(), bench).to_dict())


kernels = FLAGS.command(_kernels)


def short_kernels_bench() -> "KernelsBench":
    """Return a few sizes of each part, some twenty seconds of them."""
    sizes = KernelsOptions(
        contexts="512,4096",
        batches="1,16",
        prefixes="1024",
        groups="16,64",
        chunks="512",
        befores="0,1024",
        budget=20.0,
    )
    return kernels_bench(sizes, EngineConfig(Path()))


def kernels_bench(options: KernelsOptions, engine: EngineConfig) -> "KernelsBench":
    """Return the benchmark of `options`, on the device and in the dtype of `engine`.

    Raises `UsageError`.
    """
    from pagedrun.paged.bench.kernels.kernel_shape import KernelShape
    from pagedrun.paged.bench.kernels.kernels import KernelsBench
    from pagedrun.paged.bench.model_shapes import Shape
    from pagedrun.paged.execution.device import choose_device

    name = options.shape or DEFAULT_SHAPE
    config = Shape.named(name).config
    device = choose_device(engine.device, engine.kernel_set)
    defaults = DEFAULTS[device.torch_device.type]
    is_full = defaults.is_full or options.full
    return KernelsBench(
        device=device,
        shape=KernelShape.of(
            name,
            config,
            options.block_size or defaults.block_size,
            num_heads=options.heads,
            num_kv_heads=options.kv_heads,
            head_dim=options.head_dim,
        ),
        dtype=device.dtype(engine.dtype, config.dtype),
        sweep=_sweep(options, is_full),
        repeat=options.repeat or defaults.repeat,
        budget_s=options.budget or BUDGETS[is_full],
    )


def _engine_values(given: Given) -> dict[str, Any]:
    from pagedrun.cli.options.reading import values_of

    return values_of(EngineConfig, given, {"model", "block_size"})


def _sweep(options: KernelsOptions, is_full: bool) -> "KernelSweep":
    from pagedrun.cli.bench.setting import numbers
    from pagedrun.paged.bench.kernels.kernel_sweep import KernelSweep

    typed = {name: getattr(options, name) for name in _SWEPT}
    chosen: dict[str, Any] = {
        name: numbers(text, _SWEPT[name]) for name, text in typed.items() if text is not None
    }
    sweep = KernelSweep.full() if is_full else KernelSweep.short()
    if options.only:
        chosen["parts"] = list(dict.fromkeys(part.strip() for part in options.only.split(",")))
    return replace(sweep, **chosen)


def kernels_view() -> "View[KernelsBenchFigures]":
    """Return how a result is shown."""
    from pagedrun.cli.bench.session import View

    return View(
        "kernels",
        {"layer": describe_shape, "sizes": describe_sizes, "roof": describe_roofline},
        kernels_sheets,
    )
