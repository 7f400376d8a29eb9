"""`pagedrun warmup`: compile the kernels that runs of a model use, ahead of them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli import exits
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE
from pagedrun.paged.values.flags import Flag, Panel

if TYPE_CHECKING:
    from pagedrun.cli.options.settings import Settings
    from pagedrun.paged.machine.warm_up import WarmUp

HELP = """Compile the kernels for runs of a model, and keep them on disk.

The first run on a machine does this too, and may take a minute longer. In an image, or before \
a job with a time limit, do it ahead: pass the flags of the job, above all --model. Without \
--model the bundled model is used, in float32 and bfloat16.

Examples:

  pagedrun warmup
  pagedrun warmup --model Qwen/Qwen3-0.6B
  pagedrun warmup --model ./model --quantization int8 --json
  pagedrun warmup --model ./model-70b --pack

Exit status: 0 compiled, 1 failure, 2 refused.
"""
CPU_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpOptions:
    """Options of `warmup`."""

    pack: Annotated[
        bool,
        Flag(
            "Pack the weights too, as runs do that read them in each pass: see "
            "--weights-memory. Then these runs begin at once.",
            Panel.MEMORY,
            declared=("--pack",),
        ),
    ] = False


FLAGS = (
    GENERATE.only(
        *("model", "revision", "tokenizer", "model_impl", "device", "dtype", "quantization"),
        *("kernel_set", "activations", "max_model_len", "block_size", "kv_cache_dtype"),
        "enforce_eager",
    )
    + Flags.of(WarmUpOptions)
    + GENERATE.only("weights_memory", "packed_dir", "packed_bytes")
    + GENERATE.only("progress", "json_report", "quiet")
)


def _warmup(context: typer.Context, given: TypedValues) -> None:
    """Compile the kernels that runs of a model use."""
    # Lazy: `--help` must start fast.
    from pagedrun.cli.options.settings import Settings

    with exits.boundary(context.obj):
        settings = Settings.of(given, {each.name for each in FLAGS})
        with settings.named():
            _run(settings)


warmup = FLAGS.command(_warmup)


def _run(settings: "Settings") -> None:
    # Lazy: `--help` must start fast.
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()  # before numba and torch are imported
    from pagedrun.cli.options.generate_flags import Display, RunOptions
    from pagedrun.cli.options.reading import values_of
    from pagedrun.cli.progress.progress import show_progress
    from pagedrun.cli.report.report_figures import warn_of_weights
    from pagedrun.cli.terminal.console import note, print_json, stderr_console
    from pagedrun.paged.machine.warm_up import warm_up
    from pagedrun.paged.models.hub import DEMO, resolve_model
    from pagedrun.paged.values.engine_config import EngineConfig

    console, display, given = stderr_console(), settings.read(Display), settings.given
    name, tokenizer = str(given.get("model", DEMO)), given.get("tokenizer")
    with settings.blamed("model"):
        folder = resolve_model(name, settings.read(RunOptions).revision)
    configs = [EngineConfig.fitting(**values_of(EngineConfig, given, {"model"}), model=folder)]
    if "model" not in given and configs[0].dtype == "auto" and configs[0].device != "cuda":
        configs = [replace(configs[0], dtype=dtype) for dtype in CPU_DTYPES]
    own = None if tokenizer is None else resolve_model(str(tokenizer))
    with show_progress(display.progress, console, quiet=display.quiet) as listener:
        if "model" in given:
            warn_of_weights(configs[0], listener)
        done = warm_up(configs, own, listener, packs=settings.read(WarmUpOptions).pack)
    if not display.quiet:
        for line in _told(done):
            note(console, line)
    if display.json_report:
        print_json(done)


def _told(done: "WarmUp") -> list[str]:
    from pagedrun.cli.terminal.units import show_seconds, show_size

    what = f"{', '.join(done['dtypes'])} on {done['device']}: {done['model']}"
    files, took = done["new_files"], show_seconds(done["compile_s"], precise=True)
    first = f"Compiled in {took}, {files:,} files: {what}"
    if not files:
        first = f"Nothing to compile, read in {took}: {what}"
    kept = [
        f"kept in {each['path']} ({show_size(each['bytes'])})"
        for each in done["caches"]
        if each["files"]
    ]
    if packed := done["packed"]:
        kept.append(
            f"weights packed in {packed['path']} ({show_size(packed['bytes'])}), read at "
            f"{show_size(packed['bytes_per_s'])}/s"
        )
    return [first, *kept]
