"""ThroughputOptions: the flags of `pagedrun bench throughput` about rows and comparisons."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.values.flag import Flag


class Peer(StrEnum):
    """Other programs that can run the same rows."""

    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """Which rows are run, and against what."""

    rows: Annotated[int, Flag("Prompts.", Heading.ROWS, "N", low=1)] = 64
    shared: Annotated[
        int, Flag("Tokens that prompts begin with alike.", Heading.ROWS, "N", low=0)
    ] = 2048
    unique: Annotated[
        str,
        Flag(
            "Tokens of each prompt alone: a number, or LOW:HIGH for each row to draw its own.",
            Heading.ROWS,
            "N",
        ),
    ] = "64"
    output: Annotated[str, Flag("Tokens to generate for each, as --unique.", Heading.ROWS, "N")] = (
        "32"
    )
    group_size: Annotated[
        int | None,
        Flag(
            "Prompts that begin alike; the next ones begin otherwise.",
            Heading.ROWS,
            "N",
            default="all",
            low=1,
        ),
    ] = None
    against: Annotated[
        Peer | None,
        Flag(
            "Run the same rows with the same weights through another program as well.",
            Heading.COMPARED,
        ),
    ] = None
    hf_batch: Annotated[
        int | None,
        Flag(
            "Rows that Transformers runs at once.",
            Heading.COMPARED,
            "N",
            default="all, or what fits",
            low=1,
        ),
    ] = None
    compare: Annotated[
        str | None,
        Flag(
            "Run in another way as well: alone, no-sharing, or a flag such as block-size=32.",
            Heading.COMPARED,
            "FLAG",
        ),
    ] = None
    repeat: Annotated[
        int | None,
        Flag(
            "Times that each takes its turn.",
            Heading.COMPARED,
            "N",
            default="3 if something is compared, else 1",
            low=1,
        ),
    ] = None
    profile: Annotated[
        bool,
        Flag(
            "Show where the time went, op by op; on a GPU kernel by kernel, in one more run.",
            Heading.COMPARED,
            declared=("--profile",),
        ),
    ] = False
