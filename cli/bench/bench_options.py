"""The options of the benchmarks: what to run and how often. The engine's are `generate`'s."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pagedrun.paged.models.shapes import SHAPE_NAMES
from pagedrun.paged.values.flag import Flag, Form

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


_MODEL, _ROWS, _TURNS, _RESULT = "Model", "Rows", "What is compared", "Result"
_SIZES, _LENGTHS = "Sizes", "Requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model of a run: random weights in a known shape, or a folder's."""

    shape: Annotated[
        str | None,
        Flag(
            f"Random weights in the shape of a known model: {', '.join(SHAPE_NAMES)}.",
            _MODEL,
            "NAME",
            default=DEFAULT_SHAPE,
        ),
    ] = None
    layers: Annotated[
        int | None,
        Flag("Cut the shape to N layers, and its vocabulary in proportion.", _MODEL, "N", low=1),
    ] = None
    model: Annotated[
        str | None, Flag("Model folder, or hub id org/name, in place of a shape.", _MODEL, "NAME")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """Which rows are run, and against what."""

    rows: Annotated[int, Flag("Prompts.", _ROWS, "N", low=1)] = 64
    shared: Annotated[int, Flag("Tokens that prompts begin with alike.", _ROWS, "N", low=0)] = 2048
    unique: Annotated[
        str,
        Flag(
            "Tokens of each prompt alone: a number, or LOW:HIGH for each row to draw its own.",
            _ROWS,
            "N",
        ),
    ] = "64"
    output: Annotated[str, Flag("Tokens to generate for each, as --unique.", _ROWS, "N")] = "32"
    group_size: Annotated[
        int | None,
        Flag(
            "Prompts that begin alike; the next ones begin otherwise.",
            _ROWS,
            "N",
            default="all",
            low=1,
        ),
    ] = None
    against: Annotated[
        Peer | None,
        Flag("Run the same rows with the same weights through another program as well.", _TURNS),
    ] = None
    hf_batch: Annotated[
        int | None,
        Flag(
            "Rows that Transformers runs at once.", _TURNS, "N", default="all, or what fits", low=1
        ),
    ] = None
    compare: Annotated[
        str | None,
        Flag(
            "Run in another way as well: alone, no-sharing, or a flag such as block-size=32.",
            _TURNS,
            "FLAG",
        ),
    ] = None
    repeat: Annotated[
        int | None,
        Flag(
            "Times that each takes its turn.",
            _TURNS,
            "N",
            default="3 if something is compared, else 1",
            low=1,
        ),
    ] = None
    profile: Annotated[
        bool, Flag("Show where the time went, op by op.", _TURNS, declared=("--profile",))
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOptions:
    """Which prefixes and groups are measured, and how long."""

    prefix_lengths: Annotated[
        str, Flag("Prefix lengths, in tokens.", _ROWS, "N,N", declared=("--prefix",))
    ] = "0,128,512,1024,2048,4096"
    group_sizes: Annotated[
        str, Flag("Rows that share the prefix.", _ROWS, "N,N", declared=("--group",))
    ] = "1,4,16,64,256"
    unique: Annotated[int, Flag("Tokens of each prompt alone.", _ROWS, "N", low=1)] = 16
    output: Annotated[int, Flag("Tokens to generate for each.", _ROWS, "N", low=2)] = 16
    repeat: Annotated[int, Flag("Runs of each point.", _TURNS, "N", low=1)] = 2
    budget: Annotated[
        float,
        Flag(
            "Seconds to spend; points that would not fit are left out and named.",
            _TURNS,
            "S",
            low=1.0,
        ),
    ] = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsOptions:
    """Of which layer the kernels are, and what sizes they are given."""

    shape: Annotated[
        str | None,
        Flag(
            f"Random weights in the shape of a known model: {', '.join(SHAPE_NAMES)}.",
            _MODEL,
            "NAME",
            default=DEFAULT_SHAPE,
        ),
    ] = None
    heads: Annotated[
        int | None, Flag("Query heads.", _MODEL, "N", default="the shape's", low=1)
    ] = None
    kv_heads: Annotated[
        int | None, Flag("Heads of keys and values.", _MODEL, "N", default="the shape's", low=1)
    ] = None
    head_dim: Annotated[
        int | None, Flag("Size of a head.", _MODEL, "N", default="the shape's", low=1)
    ] = None
    block_size: Annotated[
        int | None,
        Flag("Tokens in a block of KV memory.", _MODEL, "N", default="16, on a GPU 64", low=1),
    ] = None
    contexts: Annotated[
        str | None,
        Flag(
            "Decode: tokens of each row.",
            _SIZES,
            "N,N",
            default="512,2048,8192,32768",
            declared=("--context",),
        ),
    ] = None
    batches: Annotated[
        str | None,
        Flag("Decode: rows.", _SIZES, "N,N", default="1,8,32,128", declared=("--batch",)),
    ] = None
    prefixes: Annotated[
        str | None,
        Flag(
            "Prefix: tokens that rows share.",
            _SIZES,
            "N,N",
            default="128,512,2048,8192",
            declared=("--prefix",),
        ),
    ] = None
    groups: Annotated[
        str | None,
        Flag(
            "Prefix: rows that share them.",
            _SIZES,
            "N,N",
            default="8,64,256",
            declared=("--group",),
        ),
    ] = None
    chunks: Annotated[
        str | None,
        Flag(
            "Prefill: tokens of the chunk.",
            _SIZES,
            "N,N",
            default="128,512,2048",
            declared=("--chunk",),
        ),
    ] = None
    befores: Annotated[
        str | None,
        Flag(
            "Prefill: tokens before the chunk.",
            _SIZES,
            "N,N",
            default="0,4096",
            declared=("--before",),
        ),
    ] = None
    full: Annotated[
        bool,
        Flag(
            "All sizes that are not given: contexts to 32k, prefixes to 16k, groups to 1024. What "
            "a GPU does anyway.",
            _SIZES,
            declared=("--full",),
        ),
    ] = False
    only: Annotated[
        str | None,
        Flag("Parts to measure.", _SIZES, "PART,PART", default="decode,prefix,prefill,ops"),
    ] = None
    repeat: Annotated[
        int | None, Flag("Turns of each kernel.", _TURNS, "N", default="5, on a GPU 20", low=1)
    ] = None
    budget: Annotated[
        float | None,
        Flag(
            "Seconds to spend; points that would not fit are left out and named.",
            _TURNS,
            "S",
            default="60, on a GPU or with --full 480",
            low=1.0,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """What a token takes, and which requests come and go."""

    shape: Annotated[
        str | None,
        Flag(
            f"A known model's layers and heads: {', '.join(SHAPE_NAMES)}.",
            _MODEL,
            "NAME",
            default="32 layers of 32 kv heads of 128",
        ),
    ] = None
    model: Annotated[
        str | None, Flag("Model folder, or hub id org/name, in place of a shape.", _MODEL, "NAME")
    ] = None
    layers: Annotated[int | None, Flag("Layers.", _MODEL, "N", default="the shape's", low=1)] = None
    kv_heads: Annotated[
        int | None, Flag("Heads of keys and values.", _MODEL, "N", default="the shape's", low=1)
    ] = None
    head_dim: Annotated[
        int | None, Flag("Size of a head.", _MODEL, "N", default="the shape's", low=1)
    ] = None
    dtype: Annotated[
        StoredDtype | None,
        Flag("In what keys and values are stored.", _MODEL, default="the model's, or float16"),
    ] = None
    requests: Annotated[
        str, Flag("Requests in flight at once; the most of them also come and go.", _LENGTHS, "N,N")
    ] = "10,25,50,100,200"
    mean: Annotated[float, Flag("Tokens of a request.", _LENGTHS, "N", low=0.0)] = 500.0
    std: Annotated[float, Flag("Their standard deviation.", _LENGTHS, "N", low=0.0)] = 200.0
    min_len: Annotated[int, Flag("The least of them.", _LENGTHS, "N", low=1)] = 200
    max_len: Annotated[
        int,
        Flag(
            "The most, and what contiguous reservation takes for each request.",
            _LENGTHS,
            "N",
            low=1,
        ),
    ] = 2048
    shared: Annotated[int, Flag("Tokens of a system prompt; 0: none.", _LENGTHS, "N", low=0)] = 200
    seed: Annotated[int, Flag("What lengths are drawn with.", _LENGTHS, "N", low=0)] = 0
    block_size: Annotated[
        int,
        Flag("Tokens in a block of KV memory; others are shown beside it.", _LENGTHS, "N", low=1),
    ] = 16
    kv_cache_memory_bytes: Annotated[
        int | None,
        Flag(
            "Memory in which requests come and go.",
            _LENGTHS,
            "SIZE",
            default="what 10 contiguous requests take",
            form=Form.SIZE,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How many rows run at once, and what they are."""

    seats: Annotated[
        str, Flag("Rows that run at once; eight times as many are run in all.", _ROWS, "N,N")
    ] = "128,1024,4096"
    shared: Annotated[int, Flag("Tokens that prompts begin with alike.", _ROWS, "N", low=0)] = 1024
    unique: Annotated[int, Flag("Tokens of each prompt alone.", _ROWS, "N", low=1)] = 64
    output: Annotated[
        str,
        Flag(
            "Tokens to generate for each: a number, or LOW:HIGH for each row to draw its own.",
            _ROWS,
            "N",
        ),
    ] = "32:256"
    repeat: Annotated[int, Flag("Runs of each number of seats.", _TURNS, "N", low=1)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """Where a page goes."""

    html: Annotated[
        Path | None,
        Flag(
            "Write the result as a page with charts: one file of 5 MB, complete without a network.",
            _RESULT,
            "PATH",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Where a result goes."""

    save: Annotated[
        Path | None, Flag("Keep the result as FILE.json or FILE.md.", _RESULT, "FILE")
    ] = None
    json_result: Annotated[
        bool, Flag("Print the result as JSON on stdout.", _RESULT, declared=("--json",))
    ] = False
    quiet: Annotated[
        bool, Flag("Show errors only: no progress, no tables.", _RESULT, declared=("--quiet",))
    ] = False
