"""ResultOptions and PageOptions: where a benchmark's result goes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pagedrun.cli.bench.options.heading import Heading
from pagedrun.paged.values.flags import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """Where a page goes."""

    html: Annotated[
        Path | None,
        Flag(
            "Write the result as a page with charts: one file of 5 MB that needs no network.",
            Heading.RESULT,
            "PATH",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Where a result goes."""

    save: Annotated[
        Path | None, Flag("Save the result as FILE.json or FILE.md.", Heading.RESULT, "FILE")
    ] = None
    json_result: Annotated[
        bool, Flag("Print the result as JSON on stdout.", Heading.RESULT, declared=("--json",))
    ] = False
    quiet: Annotated[
        bool,
        Flag("Show errors only: no progress, no tables.", Heading.RESULT, declared=("--quiet",)),
    ] = False
