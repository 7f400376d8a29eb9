"""`pagedrun bench kernels`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench import flags
from pagedrun.cli.options import options

if TYPE_CHECKING:
    from pagedrun.paged.bench.kernels.kernel_sweep import KernelSweep
    from pagedrun.paged.bench.kernels.kernels import KernelsBench


class _Defaults(NamedTuple):
    block_size: int
    repeat: int
    is_full: bool


# A GPU is faster, and its times are shorter.
DEFAULTS = {"cpu": _Defaults(16, 5, False), "cuda": _Defaults(64, 20, True)}
BUDGETS = (60.0, 480.0)  # of the short sweep, of the full one

HELP = f"""Measure the kernels alone, beside what the device can do at all.

decode: one query a row over contexts of 512 to 32k tokens, with one program for a whole context \
(v1) or several (v2) where the device has both, beside dense attention in torch on the same keys \
and values. prefix: a shared prefix read once, or again by each row. prefill: chunks of a prompt. \
ops: the rest of a layer, and sampling, beside plain torch.

What is compared takes turns, each checked against the others first: a kernel that is wrong gets \
no figure. A copy and a matrix product of the same run are the roofline. Caches are emptied \
before each call. Without --shape, a layer of {flags.DEFAULT_SHAPE}; as in Llama 70B: --heads 64 \
--kv-heads 8 --head-dim 128.

Examples:

  pagedrun bench kernels
  pagedrun bench kernels --only decode --context 512,8192,32768 --batch 1
  pagedrun bench kernels --only prefix --prefix 1024,4096 --group 16,256 --repeat 9
  pagedrun bench kernels --device cuda --shape qwen3-8b --json > kernels.json
  pagedrun bench kernels --full --budget 600 --save kernels.md
"""


def kernels(  # one parameter for each flag: this is where Typer reads them from
    context: typer.Context,
    shape: flags.Shape = None,
    heads: flags.Heads = None,
    kv_heads: flags.KvHeads = None,
    head_dim: flags.HeadDim = None,
    block_size: flags.KernelBlockSize = None,
    device: options.DeviceFlag = None,
    kernel_set: options.KernelSetFlag = None,
    dtype: options.DtypeFlag = None,
    contexts: flags.Contexts = None,
    batches: flags.Batches = None,
    prefixes: flags.KernelPrefixes = None,
    groups: flags.KernelGroups = None,
    chunks: flags.Chunks = None,
    befores: flags.Befores = None,
    full: flags.Full = False,
    only: flags.Only = None,
    repeat: flags.RepeatKernel = None,
    budget: flags.BudgetKernels = None,
    save: flags.Save = None,
    json_result: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Measure the kernels alone, beside what the device can do at all."""
    with exits.boundary():
        _run(context.params)


def _run(given: Mapping[str, Any]) -> None:
    from pagedrun.cli.bench.session import Session

    session = Session.of_flags(given)
    session.finish(session.measure("kernels", kernels_bench(given)))


def short_kernels_bench() -> "KernelsBench":
    """Return a few sizes of each part, some twenty seconds of them."""
    sizes = {"contexts": "512,4096", "batches": "1,16", "prefixes": "1024", "groups": "16,64"}
    return kernels_bench({**sizes, "chunks": "512", "befores": "0,1024", "budget": 20.0})


def kernels_bench(given: Mapping[str, Any]) -> "KernelsBench":
    """Return the benchmark that the flags describe, missing ones as if not given.

    Raises `UsageError`.
    """
    from pagedrun.paged.bench.kernels.kernel_shape import KernelShape
    from pagedrun.paged.bench.kernels.kernels import KernelsBench
    from pagedrun.paged.execution.device_choice import choose_device
    from pagedrun.paged.models.shapes import Shape

    name = given.get("shape") or flags.DEFAULT_SHAPE
    config = Shape.named(name).config
    device = choose_device(given.get("device") or "auto", given.get("kernel_set") or "auto")
    defaults = DEFAULTS[device.torch_device.type]
    is_full = defaults.is_full or bool(given.get("full"))
    return KernelsBench(
        device=device,
        shape=KernelShape.of(
            name,
            config,
            given.get("block_size") or defaults.block_size,
            num_heads=given.get("heads"),
            num_kv_heads=given.get("kv_heads"),
            head_dim=given.get("head_dim"),
        ),
        dtype=device.dtype(given.get("dtype") or "auto", config.dtype),
        sweep=_sweep(given, is_full),
        repeat=given.get("repeat") or defaults.repeat,
        budget_s=given.get("budget") or BUDGETS[is_full],
    )


def _sweep(given: Mapping[str, Any], is_full: bool) -> "KernelSweep":
    from pagedrun.cli.bench.setting import numbers
    from pagedrun.paged.bench.kernels.kernel_sweep import KernelSweep

    names = {
        "contexts": "--context",
        "batches": "--batch",
        "prefixes": "--prefix",
        "groups": "--group",
        "chunks": "--chunk",
        "befores": "--before",
    }
    chosen: dict[str, Any] = {
        name: numbers(given[name], flag)
        for name, flag in names.items()
        if given.get(name) is not None
    }
    sweep = KernelSweep.full() if is_full else KernelSweep.short()
    if given.get("only"):
        chosen["parts"] = list(dict.fromkeys(part.strip() for part in given["only"].split(",")))
    return replace(sweep, **chosen)
