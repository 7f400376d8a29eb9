"""ThroughputOptions: the flags of `pagedrun bench throughput` about rows and comparisons."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.values.flags import Flag


class PeerName(StrEnum):
    """Other programs that can run the same rows."""

    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """Which rows are run, and against what."""

    rows: Annotated[int, Flag("Prompts.", Heading.ROWS, "N", low=1)] = 64
    shared: Annotated[
        int, Flag("Tokens of the prompts' shared beginning.", Heading.ROWS, "N", low=0)
    ] = 2048
    unique: Annotated[
        str,
        Flag(
            "Tokens of each prompt after the shared ones: a number, or LOW:HIGH for random "
            "lengths.",
            Heading.ROWS,
            "N",
        ),
    ] = "64"
    output: Annotated[
        str, Flag("Tokens to generate per row, in the same form as --unique.", Heading.ROWS, "N")
    ] = "32"
    group_size: Annotated[
        int | None,
        Flag(
            "Rows that share one beginning; each group has another.",
            Heading.ROWS,
            "N",
            default="all",
            low=1,
        ),
    ] = None
    against: Annotated[
        PeerName | None,
        Flag(
            "Also run the same rows and weights in another program.",
            Heading.COMPARED,
        ),
    ] = None
    hf_batch: Annotated[
        int | None,
        Flag(
            "Batch size of Transformers.",
            Heading.COMPARED,
            "N",
            default="all rows, or as many as fit",
            low=1,
        ),
    ] = None
    compare: Annotated[
        str | None,
        Flag(
            "Also run with another setting: alone, no-sharing, or a flag such as block-size=32.",
            Heading.COMPARED,
            "FLAG",
        ),
    ] = None
    repeat: Annotated[
        int | None,
        Flag(
            "Runs of each contender.",
            Heading.COMPARED,
            "N",
            default="3 in a comparison, else 1",
            low=1,
        ),
    ] = None
    profile: Annotated[
        bool,
        Flag(
            "Show times by operation, or on a GPU by kernel, in an additional run.",
            Heading.COMPARED,
            declared=("--profile",),
        ),
    ] = False
