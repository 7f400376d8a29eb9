"""HostOptions: the flags of `pagedrun bench host`."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.values.flag import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How many rows run at once, and what they are."""

    seats: Annotated[
        str, Flag("Rows that run at once; several times as many are run.", Heading.ROWS, "N,N")
    ] = "128,1024,4096"
    rows_per_seat: Annotated[
        int, Flag("Rows that are run for each that runs at once.", Heading.ROWS, "N", low=1)
    ] = 8
    shared: Annotated[
        int, Flag("Tokens that prompts begin with alike.", Heading.ROWS, "N", low=0)
    ] = 1024
    unique: Annotated[int, Flag("Tokens of each prompt alone.", Heading.ROWS, "N", low=1)] = 64
    output: Annotated[
        str,
        Flag(
            "Tokens to generate for each: a number, or LOW:HIGH for each row to draw its own.",
            Heading.ROWS,
            "N",
        ),
    ] = "32:256"
    repeat: Annotated[int, Flag("Runs of each number of seats.", Heading.COMPARED, "N", low=1)] = 1
    as_gpu: Annotated[
        bool,
        Flag(
            "Launch steps as on a GPU, one ahead of its tokens; captured ones compute nothing.",
            Heading.COMPARED,
        ),
    ] = False
    refill_share: Annotated[
        float | None,
        Flag(
            "Share of the rows that must have ended before others join them.",
            Heading.COMPARED,
            "X",
            default="0, 0.0625 with --as-gpu",
            low=0,
            high=0.99,
        ),
    ] = None
