"""`pagedrun bench accuracy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pagedrun.cli import exits
from pagedrun.cli.bench.options.accuracy_options import AccuracyOptions
from pagedrun.cli.bench.options.result_options import ResultOptions
from pagedrun.cli.bench.sheets.accuracy_sheets import accuracy_sheets, describe_text, describe_ways
from pagedrun.cli.options.flags import Flags, Given
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError

if TYPE_CHECKING:
    from pagedrun.cli.bench.session import View
    from pagedrun.paged.bench.accuracy.accuracy import AccuracyBench
    from pagedrun.paged.bench.accuracy.accuracy_figures import AccuracyBenchFigures
    from pagedrun.paged.bench.accuracy.accuracy_text import AccuracyText
    from pagedrun.paged.bench.accuracy.way import Way

HELP = """Measure how quantization and similar settings change a model's answers.

The model runs with the given flags, and then without --quantization and --kv-cache-dtype, or, \
with --against, another folder or file, for instance the model before quantization. Both score \
the same text and answer the same prompts greedily.

Shows the perplexity of both, the number of identical answers, the tokens before the first \
difference, and the number of first differences that are near ties, where rounding alone decides. \
A row has the same figures in any batch, so a second run gives the same result.

Examples:

  pagedrun bench accuracy --model ./model --text wiki.txt --dtype bfloat16 --against-dtype float32
  pagedrun bench accuracy --model model-Q4_K_M.gguf --against ./model --text wiki.txt --chunk 512
  pagedrun bench accuracy --model ./model-awq --against ./model --text prompts.jsonl --json
  pagedrun bench accuracy --model ./model --kv-cache-dtype int8 --text wiki.txt --save int8.md
"""

# What a way of running a model may change, and the way that it is compared with does not.
_CHANGES = ("quantization", "kv_cache_dtype")

FLAGS = (
    Flags.of(AccuracyOptions)
    + GENERATE.only(
        *("revision", "tokenizer", "device", "dtype", "quantization", "kv_cache_dtype"),
        *("kernel_set", "max_model_len", "block_size", "num_blocks", "kv_cache_memory_bytes"),
        *("gpu_memory_utilization", "enforce_eager", "reproducible"),
        *("max_num_seqs", "max_num_batched_tokens"),
    )
    + Flags.of(ResultOptions)
)


def _accuracy(context: typer.Context, given: Given) -> None:
    """Measure how quantization and similar settings change a model's answers."""
    from pagedrun.cli.bench.session import Session
    from pagedrun.cli.options.settings import Settings

    with exits.boundary():
        settings = Settings.of(given, {each.name for each in FLAGS})
        session = Session.of(settings.read(ResultOptions))
        with settings.named():
            session.finish(
                session.measure(accuracy_view(), accuracy_bench(settings.given)).to_dict()
            )


accuracy = FLAGS.command(_accuracy)


def accuracy_bench(given: Given) -> "AccuracyBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.options.reading import read
    from pagedrun.paged.bench.accuracy.accuracy import AccuracyBench

    options = read(AccuracyOptions, given)
    if options.text is None:
        raise UsageError("--text FILE is missing: a text to score, or prompts as rows in .jsonl")
    measured, reference = _ways(options, given)
    return AccuracyBench(
        measured=measured,
        reference=reference,
        text=_text(options.text),
        chunk=options.chunk,
        stride=options.stride,
        max_chunks=options.max_chunks,
        num_prompts=options.num_prompts,
        output=options.output,
        near_tie=options.near_tie,
    )


def _ways(options: AccuracyOptions, given: Given) -> "tuple[Way, Way]":
    """Return the way that the flags say, and what it is compared with."""
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.accuracy.way import Way
    from pagedrun.paged.models.hub import resolve_model

    if options.model is None:
        raise UsageError("--model NAME is missing")
    folder = resolve_model(options.model, read(RunOptions, given).revision)
    flags = values_of(EngineConfig, given, {"model"})
    others = {name: value for name, value in flags.items() if name not in _CHANGES}
    if options.against_dtype is not None:
        others["dtype"] = options.against_dtype
    other = folder if options.against is None else resolve_model(options.against)
    if options.against is None and others == flags:
        raise UsageError(
            "there is nothing to compare: give --quantization, --kv-cache-dtype, --against-dtype, "
            "or --against with another model"
        )
    tokenizer = values_of(JobConfig, given).get("tokenizer")
    texts = None if tokenizer is None else resolve_model(str(tokenizer))
    names = _name(folder, flags, others), _name(other, others, flags)
    if names[0] == names[1]:
        names = names[0], f"{names[1]} (2)"
    return Way(names[0], folder, flags, texts), Way(names[1], other, others, texts)


def _name(folder: Path, flags: dict[str, Any], others: dict[str, Any]) -> str:
    """Return what to call a way: its model, and the flags that the other has not."""
    own = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in flags.items()
        if others.get(name) != value
    ]
    return " ".join([folder.resolve().name, *own])


def _text(path: Path) -> "AccuracyText":
    from pagedrun.cli.bench.prompt_file import SUFFIX, PromptFile
    from pagedrun.paged.bench.accuracy.accuracy_text import RunningText

    return PromptFile(path) if path.suffix.lower() == SUFFIX else RunningText.read(path)


def accuracy_view() -> "View[AccuracyBenchFigures]":
    """Return how a result is shown."""
    from pagedrun.cli.bench.session import View

    return View("accuracy", {"compared": describe_ways, "text": describe_text}, accuracy_sheets)
