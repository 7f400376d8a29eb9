"""The flags of the benchmarks: what to run and how often. Those of the engine are `generate`'s."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pagedrun.cli.terminal.sizes import parse_size
from pagedrun.paged.models.shapes import SHAPE_NAMES

DEFAULT_SHAPE = "qwen3-0.6b"


class Peer(StrEnum):
    """Other programs that can run the same rows."""

    TRANSFORMERS = "transformers"


class StoredDtype(StrEnum):
    """In what keys and values can be stored."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8 = "fp8"
    INT8 = "int8"


def _flag(name: str, help_text: str, panel: str, **settings: Any) -> Any:
    shown = settings.pop("shown", None)
    if shown is not None:
        help_text = f"{help_text} Default: {shown}."
    return typer.Option(
        f"--{name}", help=help_text, rich_help_panel=panel, show_default=False, **settings
    )


_MODEL, _ROWS, _TURNS, _RESULT = "Model", "Rows", "What is compared", "Result"

Shape = Annotated[
    str | None,
    _flag(
        "shape",
        f"Random weights in the shape of a known model: {', '.join(SHAPE_NAMES)}.",
        _MODEL,
        metavar="NAME",
        shown=DEFAULT_SHAPE,
    ),
]
Model = Annotated[
    str | None,
    _flag(
        "model", "Model folder, or hub id org/name, in place of a shape.", _MODEL, metavar="NAME"
    ),
]
Layers = Annotated[
    int | None,
    _flag(
        "layers",
        "Cut the shape to N layers, and its vocabulary in proportion.",
        _MODEL,
        metavar="N",
        min=1,
    ),
]
Rows = Annotated[int, _flag("rows", "Prompts.", _ROWS, metavar="N", min=1, shown=64)]
Shared = Annotated[
    int,
    _flag("shared", "Tokens that prompts begin with alike.", _ROWS, metavar="N", min=0, shown=2048),
]
Unique = Annotated[
    str,
    _flag(
        "unique",
        "Tokens of each prompt alone: a number, or LOW:HIGH for each row to draw its own.",
        _ROWS,
        metavar="N",
        shown=64,
    ),
]
Output = Annotated[
    str, _flag("output", "Tokens to generate for each, as --unique.", _ROWS, metavar="N", shown=32)
]
GroupSize = Annotated[
    int | None,
    _flag(
        "group-size",
        "Prompts that begin alike; the next ones begin otherwise.",
        _ROWS,
        metavar="N",
        min=1,
        shown="all",
    ),
]
UniqueShort = Annotated[
    int, _flag("unique", "Tokens of each prompt alone.", _ROWS, metavar="N", min=1, shown=16)
]
OutputShort = Annotated[
    int, _flag("output", "Tokens to generate for each.", _ROWS, metavar="N", min=2, shown=16)
]
Prefixes = Annotated[
    str,
    _flag(
        "prefix",
        "Prefix lengths, in tokens.",
        _ROWS,
        metavar="N,N",
        shown="0,128,512,1024,2048,4096",
    ),
]
Groups = Annotated[
    str,
    _flag("group", "Rows that share the prefix.", _ROWS, metavar="N,N", shown="1,4,16,64,256"),
]

_SIZES = "Sizes"
Heads = Annotated[
    int | None,
    _flag("heads", "Query heads.", _MODEL, metavar="N", min=1, shown="the shape's"),
]
KvHeads = Annotated[
    int | None,
    _flag("kv-heads", "Heads of keys and values.", _MODEL, metavar="N", min=1, shown="the shape's"),
]
HeadDim = Annotated[
    int | None,
    _flag("head-dim", "Size of a head.", _MODEL, metavar="N", min=1, shown="the shape's"),
]
KernelBlockSize = Annotated[
    int | None,
    _flag(
        "block-size",
        "Tokens in a block of KV memory.",
        _MODEL,
        metavar="N",
        min=1,
        shown="16, on a GPU 64",
    ),
]
Full = Annotated[
    bool,
    _flag(
        "full",
        "All sizes that are not given: contexts to 32k, prefixes to 16k, groups to 1024. What a "
        "GPU does anyway.",
        _SIZES,
    ),
]
Only = Annotated[
    str | None,
    _flag(
        "only",
        "Parts to measure.",
        _SIZES,
        metavar="PART,PART",
        shown="decode,prefix,prefill,ops",
    ),
]


def _sizes(name: str, help_text: str, shown: str) -> Any:
    return _flag(name, help_text, _SIZES, metavar="N,N", shown=shown)


Contexts = Annotated[
    str | None, _sizes("context", "Decode: tokens of each row.", "512,2048,8192,32768")
]
Batches = Annotated[str | None, _sizes("batch", "Decode: rows.", "1,8,32,128")]
KernelPrefixes = Annotated[
    str | None, _sizes("prefix", "Prefix: tokens that rows share.", "128,512,2048,8192")
]
KernelGroups = Annotated[str | None, _sizes("group", "Prefix: rows that share them.", "8,64,256")]
Chunks = Annotated[str | None, _sizes("chunk", "Prefill: tokens of the chunk.", "128,512,2048")]
Befores = Annotated[str | None, _sizes("before", "Prefill: tokens before the chunk.", "0,4096")]
_LENGTHS = "Requests"
MemoryShape = Annotated[
    str | None,
    _flag(
        "shape",
        f"A known model's layers and heads: {', '.join(SHAPE_NAMES)}.",
        _MODEL,
        metavar="NAME",
        shown="32 layers of 32 kv heads of 128",
    ),
]
MemoryLayers = Annotated[
    int | None, _flag("layers", "Layers.", _MODEL, metavar="N", min=1, shown="the shape's")
]
MemoryDtype = Annotated[
    StoredDtype | None,
    _flag("dtype", "In what keys and values are stored.", _MODEL, shown="the model's, or float16"),
]
Requests = Annotated[
    str,
    _flag(
        "requests",
        "Requests in flight at once; the most of them also come and go.",
        _LENGTHS,
        metavar="N,N",
        shown="10,25,50,100,200",
    ),
]
Mean = Annotated[
    float, _flag("mean", "Tokens of a request.", _LENGTHS, metavar="N", min=0.0, shown=500)
]
Std = Annotated[
    float, _flag("std", "Their standard deviation.", _LENGTHS, metavar="N", min=0.0, shown=200)
]
MinLen = Annotated[
    int, _flag("min-len", "The least of them.", _LENGTHS, metavar="N", min=1, shown=200)
]
MaxLen = Annotated[
    int,
    _flag(
        "max-len",
        "The most, and what contiguous reservation takes for each request.",
        _LENGTHS,
        metavar="N",
        min=1,
        shown=2048,
    ),
]
SystemTokens = Annotated[
    int,
    _flag("shared", "Tokens of a system prompt; 0: none.", _LENGTHS, metavar="N", min=0, shown=200),
]
Seed = Annotated[
    int, _flag("seed", "What lengths are drawn with.", _LENGTHS, metavar="N", min=0, shown=0)
]
MemoryBlockSize = Annotated[
    int,
    _flag(
        "block-size",
        "Tokens in a block of KV memory; others are shown beside it.",
        _LENGTHS,
        metavar="N",
        min=1,
        shown=16,
    ),
]
MemoryBytes = Annotated[
    int | None,
    _flag(
        "kv-cache-memory-bytes",
        "Memory in which requests come and go.",
        _LENGTHS,
        parser=parse_size,
        metavar="SIZE",
        shown="what 10 contiguous requests take",
    ),
]

Against = Annotated[
    Peer | None,
    _flag(
        "against",
        "Run the same rows with the same weights through another program as well.",
        _TURNS,
    ),
]
HfBatch = Annotated[
    int | None,
    _flag(
        "hf-batch",
        "Rows that Transformers runs at once.",
        _TURNS,
        metavar="N",
        min=1,
        shown="all, or what fits",
    ),
]
Compare = Annotated[
    str | None,
    _flag(
        "compare",
        "Run in another way as well: alone, no-sharing, or a flag such as block-size=32.",
        _TURNS,
        metavar="FLAG",
    ),
]
Repeat = Annotated[
    int | None,
    _flag(
        "repeat",
        "Times that each takes its turn.",
        _TURNS,
        metavar="N",
        min=1,
        shown="3 if something is compared, else 1",
    ),
]
RepeatPoint = Annotated[
    int, _flag("repeat", "Runs of each point.", _TURNS, metavar="N", min=1, shown=2)
]
RepeatKernel = Annotated[
    int | None,
    _flag("repeat", "Turns of each kernel.", _TURNS, metavar="N", min=1, shown="5, on a GPU 20"),
]
Profile = Annotated[bool, _flag("profile", "Show where the time went, op by op.", _TURNS)]
Budget = Annotated[
    float,
    _flag(
        "budget",
        "Seconds to spend; points that would not fit are left out and named.",
        _TURNS,
        metavar="S",
        min=1.0,
        shown=240,
    ),
]
BudgetKernels = Annotated[
    float | None,
    _flag(
        "budget",
        "Seconds to spend; points that would not fit are left out and named.",
        _TURNS,
        metavar="S",
        min=1.0,
        shown="60, on a GPU or with --full 480",
    ),
]

Save = Annotated[
    Path | None,
    _flag("save", "Keep the result as FILE.json or FILE.md.", _RESULT, metavar="FILE"),
]
Html = Annotated[
    Path | None,
    _flag(
        "html",
        "Write the result as a page with charts: one file of 5 MB, complete without a network.",
        _RESULT,
        metavar="PATH",
    ),
]
Json = Annotated[bool, _flag("json", "Print the result as JSON on stdout.", _RESULT)]
Quiet = Annotated[bool, _flag("quiet", "Show errors only: no progress, no tables.", _RESULT)]
