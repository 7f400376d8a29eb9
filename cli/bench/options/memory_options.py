"""MemoryOptions: the flags of `pagedrun bench memory` about the model and requests."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.bench.model_shapes import SHAPE_NAMES
from pagedrun.paged.values.flags import Flag, Form


class StoredDtype(StrEnum):
    """In what keys and values can be stored."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8 = "fp8"
    INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """What a token takes, and which requests come and go."""

    shape: Annotated[
        str | None,
        Flag(
            f"A known model's layers and heads: {', '.join(SHAPE_NAMES)}.",
            Heading.MODEL,
            "NAME",
            default="32 layers of 32 kv heads of 128",
        ),
    ] = None
    model: Annotated[
        str | None,
        Flag("Model folder, or hub id org/name, instead of a shape.", Heading.MODEL, "NAME"),
    ] = None
    layers: Annotated[
        int | None, Flag("Layers.", Heading.MODEL, "N", default="the shape's", low=1)
    ] = None
    kv_heads: Annotated[
        int | None,
        Flag("Number of key and value heads.", Heading.MODEL, "N", default="the shape's", low=1),
    ] = None
    head_dim: Annotated[
        int | None, Flag("Size of a head.", Heading.MODEL, "N", default="the shape's", low=1)
    ] = None
    dtype: Annotated[
        StoredDtype | None,
        Flag("Number format of keys and values.", Heading.MODEL, default="the model's, or float16"),
    ] = None
    requests: Annotated[
        str,
        Flag(
            "Numbers of concurrent requests; the largest is also used for requests that "
            "join and leave.",
            Heading.LENGTHS,
            "N,N",
        ),
    ] = "10,25,50,100,200"
    mean: Annotated[
        float, Flag("Mean number of tokens of a request.", Heading.LENGTHS, "N", low=0.0)
    ] = 500.0
    std: Annotated[float, Flag("Their standard deviation.", Heading.LENGTHS, "N", low=0.0)] = 200.0
    min_len: Annotated[int, Flag("Minimum number of tokens.", Heading.LENGTHS, "N", low=1)] = 200
    max_len: Annotated[
        int,
        Flag(
            "Maximum number of tokens, reserved for each contiguous request.",
            Heading.LENGTHS,
            "N",
            low=1,
        ),
    ] = 2048
    shared: Annotated[
        int, Flag("Tokens of a system prompt; 0: none.", Heading.LENGTHS, "N", low=0)
    ] = 200
    seed: Annotated[int, Flag("Seed of the random lengths.", Heading.LENGTHS, "N", low=0)] = 0
    block_size: Annotated[
        int,
        Flag(
            "Tokens per block of KV memory; other sizes are shown for comparison.",
            Heading.LENGTHS,
            "N",
            low=1,
        ),
    ] = 16
    kv_cache_memory_bytes: Annotated[
        int | None,
        Flag(
            "Memory for requests that join and leave.",
            Heading.LENGTHS,
            "SIZE",
            default="the memory of 10 contiguous requests",
            form=Form.SIZE,
        ),
    ] = None
