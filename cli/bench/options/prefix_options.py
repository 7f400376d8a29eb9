"""PrefixOptions: the flags of `pagedrun bench prefix` about prefixes, groups and time."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.values.flags import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOptions:
    """Which prefixes and groups are measured, and how long."""

    prefix_lengths: Annotated[
        str, Flag("Prefix lengths, in tokens.", Heading.ROWS, "N,N", declared=("--prefix",))
    ] = "0,128,512,1024,2048,4096"
    group_sizes: Annotated[
        str,
        Flag("Numbers of rows that share the prefix.", Heading.ROWS, "N,N", declared=("--group",)),
    ] = "1,4,16,64,256"
    unique: Annotated[
        int, Flag("Tokens of each prompt after the prefix.", Heading.ROWS, "N", low=1)
    ] = 16
    output: Annotated[int, Flag("Tokens to generate per row.", Heading.ROWS, "N", low=2)] = 16
    repeat: Annotated[int, Flag("Runs of each point.", Heading.COMPARED, "N", low=1)] = 2
    budget: Annotated[
        float,
        Flag(
            "Time budget in seconds; points that would exceed it are skipped and listed.",
            Heading.COMPARED,
            "S",
            low=1.0,
        ),
    ] = 240.0
