"""`pagedrun bench accuracy`: flags, benchmark and tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pagedrun.cli.bench.command import BenchCommand
from pagedrun.cli.bench.options import Heading, ResultOptions
from pagedrun.cli.bench.tables import NOTHING, Sheet
from pagedrun.cli.options.flags import Flags, TypedValues
from pagedrun.cli.options.generate_flags import GENERATE, RunOptions
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.values.engine_config import DTYPES, EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.flags import Flag, Form
from pagedrun.paged.values.rules import one_of

if TYPE_CHECKING:
    from pagedrun.paged.bench.accuracy import AccuracyBench, AccuracyBenchFigures, AccuracyText, Way

HELP = """Measure how quantization and similar settings change a model's answers.

The model runs with the given flags, and then without --quantization and --kv-cache-dtype and, \
if --activations is given, with exact ones, or, with --against, another folder or file, for \
instance the model before quantization. Both score the same text and answer the same prompts \
greedily.

Shows the perplexity of both, the number of identical answers, the tokens before the first \
difference, and the number of first differences that are near ties, where rounding alone decides. \
A row has the same figures in any batch, so a second run gives the same result.

Examples:

  pagedrun bench accuracy --model ./model --text wiki.txt --dtype bfloat16 --against-dtype float32
  pagedrun bench accuracy --model model-Q4_K_M.gguf --against ./model --text wiki.txt --chunk 512
  pagedrun bench accuracy --model ./model-awq --against ./model --text prompts.jsonl --json
  pagedrun bench accuracy --model ./model --kv-cache-dtype int8 --text wiki.txt --save int8.md
  pagedrun bench accuracy --model ./model-awq --activations int8 --text wiki.txt
"""

# Flags of the measured way that its reference does not have.
_CHANGES = ("quantization", "kv_cache_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyOptions:
    """Texts to score, prompts to answer, and the peer of the comparison."""

    model: Annotated[
        str | None,
        Flag(
            "Model folder, GGUF file, or hub id org/name.",
            Heading.MODEL,
            "NAME",
            default="none, required",
            form=Form.MODEL,
        ),
    ] = None
    text: Annotated[
        Path | None,
        Flag(
            "Text to score and to continue: a text file, or prompts as rows in .jsonl.",
            Heading.ROWS,
            "FILE",
            default="none, required",
        ),
    ] = None
    chunk: Annotated[
        int | None,
        Flag(
            "Tokens per chunk; each chunk is scored in one pass.",
            Heading.ROWS,
            "N",
            default="--max-model-len, at most 2048",
            low=2,
        ),
    ] = None
    stride: Annotated[
        int | None,
        Flag(
            "Tokens from the beginning of a chunk to that of the next; fewer give each "
            "token more context.",
            Heading.ROWS,
            "N",
            default="a chunk's",
            low=1,
        ),
    ] = None
    max_chunks: Annotated[
        int | None,
        Flag("Chunks to score, from the first.", Heading.ROWS, "N", default="all", low=1),
    ] = None
    num_prompts: Annotated[
        int,
        Flag(
            "Prompts to answer greedily: rows, or pieces of a text.",
            Heading.ROWS,
            "N",
            low=1,
            declared=("--prompts",),
        ),
    ] = 64
    output: Annotated[int, Flag("Tokens per answer.", Heading.ROWS, "N", low=1)] = 32
    against: Annotated[
        str | None,
        Flag(
            "Model folder, GGUF file or hub id to compare with.",
            Heading.COMPARED,
            "NAME",
            default="the same model",
            form=Form.MODEL,
        ),
    ] = None
    against_dtype: Annotated[
        str | None,
        Flag(
            "Number format of the model to compare with.",
            Heading.COMPARED,
            "FORMAT",
            default="the same",
            rule=one_of(DTYPES),
        ),
    ] = None
    near_tie: Annotated[
        float,
        Flag(
            "A first difference is a near tie if the most likely token leads the second by "
            "less than this in log-probability.",
            Heading.COMPARED,
            "X",
            low=0.0,
        ),
    ] = 0.1


FLAGS = (
    Flags.of(AccuracyOptions)
    + GENERATE.only(
        *("revision", "tokenizer", "device", "dtype", "quantization", "kv_cache_dtype"),
        *("kernel_set", "activations", "max_model_len"),
        *("block_size", "num_blocks", "kv_cache_memory_bytes"),
        *("gpu_memory_utilization", "enforce_eager", "reproducible"),
        *("max_num_seqs", "max_num_batched_tokens"),
    )
    + Flags.of(ResultOptions)
)


def _agreement(result: "AccuracyBenchFigures") -> Sheet:
    scores, answers = result["scores"], result["answers"]
    differences = answers["prompts"] - answers["same"]
    rows = [
        ("identical answers", *_share(answers["same"], answers["prompts"])),
        (
            "tokens before the first difference",
            *_share(answers["positions_before"], answers["positions"]),
        ),
        ("first differences that are near ties", *_share(answers["near_ties"], differences)),
        (
            "positions with the same most likely token",
            *_share(scores["same_top"], scores["tokens"]),
        ),
        ("log-probability difference, mean", f"{scores['mean_difference']:.5f}", ""),
        ("log-probability difference, maximum", f"{scores['largest_difference']:.5f}", ""),
    ]
    return Sheet(
        "Agreement",
        ("", "", "share"),
        rows,
        "Near tie: the reference's most likely token leads its second by less than "
        f"{answers['near_tie']:g} in log-probability.",
    )


def _name(folder: Path, flags: dict[str, Any], others: dict[str, Any]) -> str:
    """Return the name of a way: its model, and the flags that differ from `others`."""
    own = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in flags.items()
        if others.get(name) != value
    ]
    return " ".join([folder.resolve().name, *own])


def _perplexities(result: "AccuracyBenchFigures") -> Sheet:
    ways = (result["measured"], result["reference"])
    rows = [
        ("perplexity", *(_perplexity(way["perplexity"]) for way in ways)),
        ("mean log-probability", *(f"{way['mean_logprob']:.5f}" for way in ways)),
        ("weights in memory", *(show_size(way["weight_bytes"]) for way in ways)),
    ]
    return Sheet(
        "The text",
        ("", *(way["name"] for way in ways)),
        rows,
        f"Of {result['text']['scored_tokens']:,} scored tokens. Perplexities are "
        "comparable for models with the same vocabulary, in chunks of the same length.",
    )


def _perplexity(perplexity: float | None) -> str:
    return NOTHING if perplexity is None else f"{perplexity:,.4f}"


def _share(part: int, whole: int) -> tuple[str, str]:
    return f"{part:,} of {whole:,}", f"{part / whole:.1%}" if whole else NOTHING


def _text(path: Path) -> "AccuracyText":
    from pagedrun.cli.bench.prompt_file import SUFFIX, PromptFile
    from pagedrun.paged.bench.accuracy import RunningText

    return PromptFile(path) if path.suffix.lower() == SUFFIX else RunningText.read(path)


def _ways(options: AccuracyOptions, given: TypedValues) -> "tuple[Way, Way]":
    """Return the way described by the flags, and its reference."""
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.accuracy import Way
    from pagedrun.paged.models.hub import resolve_model

    if options.model is None:
        raise UsageError("--model NAME is missing")
    folder = resolve_model(options.model, read(RunOptions, given).revision)
    flags = values_of(EngineConfig, given, {"model"})
    others = {name: value for name, value in flags.items() if name not in _CHANGES}
    if "activations" in flags:
        others["activations"] = "exact"
    if options.against_dtype is not None:
        others["dtype"] = options.against_dtype
    other = folder if options.against is None else resolve_model(options.against)
    if options.against is None and others == flags:
        raise UsageError(
            "there is nothing to compare: give --quantization, --kv-cache-dtype, --activations "
            "int8, --against-dtype, or --against with another model"
        )
    tokenizer = values_of(JobConfig, given).get("tokenizer")
    texts = None if tokenizer is None else resolve_model(str(tokenizer))
    names = _name(folder, flags, others), _name(other, others, flags)
    if names[0] == names[1]:
        names = names[0], f"{names[1]} (2)"
    return Way(names[0], folder, flags, texts), Way(names[1], other, others, texts)


def accuracy_bench(given: TypedValues) -> "AccuracyBench":
    """Return the benchmark that the flags describe; raises `UsageError`."""
    from pagedrun.cli.options.reading import read, values_of
    from pagedrun.paged.bench.accuracy import AccuracyBench

    options = read(AccuracyOptions, given)
    if options.text is None:
        raise UsageError("--text FILE is missing: a text to score, or prompts as rows in .jsonl")
    measured, reference = _ways(options, given)
    others = {"model", "text", "against", "against_dtype"}
    return AccuracyBench(
        measured, reference, _text(options.text), **values_of(AccuracyOptions, given, others)
    )


def accuracy_sheets(result: "AccuracyBenchFigures") -> list[Sheet]:
    """Return the tables: scores of the text, and agreement."""
    return [_perplexities(result), _agreement(result)]


def describe_text(result: "AccuracyBenchFigures") -> str:
    """Return the text in a line."""
    text = result["text"]
    return (
        f"{text['name']}, {text['tokens']:,} tokens in {text['chunks']:,} chunks of "
        f"{text['chunk']:,} that begin {text['stride']:,} apart; {text['prompts']:,} prompts, "
        f"{text['output']:,} tokens out, greedy"
    )


def describe_ways(result: "AccuracyBenchFigures") -> str:
    """Return both sides of the comparison in a line."""
    measured, reference = result["measured"], result["reference"]
    return (
        f"{measured['name']} ({measured['dtype']}) against {reference['name']} "
        f"({reference['dtype']})"
    )


ACCURACY = BenchCommand(
    name="accuracy",
    help=HELP,
    flags=FLAGS,
    bench=accuracy_bench,
    described={"compared": describe_ways, "text": describe_text},
    sheets=accuracy_sheets,
    has_defaults=True,
)
