"""KernelsOptions: the flags of `pagedrun bench kernels` about the layer, sizes and time."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.cli.bench.options.model_options import DEFAULT_SHAPE
from pagedrun.paged.bench.model_shapes import SHAPE_NAMES
from pagedrun.paged.values.flags import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsOptions:
    """Of which layer the kernels are, and what sizes they are given."""

    shape: Annotated[
        str | None,
        Flag(
            f"Random weights in the shape of a known model: {', '.join(SHAPE_NAMES)}.",
            Heading.MODEL,
            "NAME",
            default=DEFAULT_SHAPE,
        ),
    ] = None
    heads: Annotated[
        int | None, Flag("Query heads.", Heading.MODEL, "N", default="the shape's", low=1)
    ] = None
    kv_heads: Annotated[
        int | None,
        Flag("Number of key and value heads.", Heading.MODEL, "N", default="the shape's", low=1),
    ] = None
    head_dim: Annotated[
        int | None, Flag("Size of a head.", Heading.MODEL, "N", default="the shape's", low=1)
    ] = None
    block_size: Annotated[
        int | None,
        Flag(
            "Tokens per block of KV memory.", Heading.MODEL, "N", default="16, on a GPU 64", low=1
        ),
    ] = None
    contexts: Annotated[
        str | None,
        Flag(
            "Decode: tokens of each row.",
            Heading.SIZES,
            "N,N",
            default="512,2048,8192,32768",
            declared=("--context",),
        ),
    ] = None
    batches: Annotated[
        str | None,
        Flag("Decode: rows.", Heading.SIZES, "N,N", default="1,8,32,128", declared=("--batch",)),
    ] = None
    prefixes: Annotated[
        str | None,
        Flag(
            "Prefix: shared tokens.",
            Heading.SIZES,
            "N,N",
            default="128,512,2048,8192",
            declared=("--prefix",),
        ),
    ] = None
    groups: Annotated[
        str | None,
        Flag(
            "Prefix: rows in a group.",
            Heading.SIZES,
            "N,N",
            default="8,64,256",
            declared=("--group",),
        ),
    ] = None
    chunks: Annotated[
        str | None,
        Flag(
            "Prefill: tokens of the chunk.",
            Heading.SIZES,
            "N,N",
            default="128,512,2048",
            declared=("--chunk",),
        ),
    ] = None
    befores: Annotated[
        str | None,
        Flag(
            "Prefill: tokens before the chunk.",
            Heading.SIZES,
            "N,N",
            default="0,4096",
            declared=("--before",),
        ),
    ] = None
    full: Annotated[
        bool,
        Flag(
            "Use all sizes for lists that are not given: contexts to 32k, prefixes to 16k, "
            "groups to 1024. Default on a GPU.",
            Heading.SIZES,
            declared=("--full",),
        ),
    ] = False
    only: Annotated[
        str | None,
        Flag("Parts to measure.", Heading.SIZES, "PART,PART", default="decode,prefix,prefill,ops"),
    ] = None
    repeat: Annotated[
        int | None,
        Flag("Repetitions of each kernel.", Heading.COMPARED, "N", default="5, on a GPU 20", low=1),
    ] = None
    budget: Annotated[
        float | None,
        Flag(
            "Time budget in seconds; points that would exceed it are skipped and listed.",
            Heading.COMPARED,
            "S",
            default="60, on a GPU or with --full 480",
            low=1.0,
        ),
    ] = None
