"""HostOptions: the flags of `pagedrun bench host`."""

from dataclasses import dataclass
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.values.flags import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How many rows run at once, and what they are."""

    seats: Annotated[
        str,
        Flag(
            "Numbers of concurrent rows; several times as many rows are run for each.",
            Heading.ROWS,
            "N,N",
        ),
    ] = "128,1024,4096"
    rows_per_seat: Annotated[
        int, Flag("Rows in all for each concurrent row.", Heading.ROWS, "N", low=1)
    ] = 8
    shared: Annotated[
        int, Flag("Tokens of the prompts' shared beginning.", Heading.ROWS, "N", low=0)
    ] = 1024
    unique: Annotated[
        int, Flag("Tokens of each prompt after the shared ones.", Heading.ROWS, "N", low=1)
    ] = 64
    output: Annotated[
        str,
        Flag(
            "Tokens to generate per row: a number, or LOW:HIGH for random lengths.",
            Heading.ROWS,
            "N",
        ),
    ] = "32:256"
    repeat: Annotated[
        int, Flag("Runs for each number of concurrent rows.", Heading.COMPARED, "N", low=1)
    ] = 1
    as_gpu: Annotated[
        bool,
        Flag(
            "Launch steps as on a GPU, one step ahead of their tokens; captured steps "
            "compute nothing.",
            Heading.COMPARED,
        ),
    ] = False
    refill_share: Annotated[
        float | None,
        Flag(
            "Share of the running rows that must end before waiting ones are admitted.",
            Heading.COMPARED,
            "X",
            default="0, 0.0625 with --as-gpu",
            low=0,
            high=0.99,
        ),
    ] = None
