"""The page of `bench memory`: its tables, and beside each a chart."""

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.cli.bench.sheets.memory_sheets import WAYS, memory_tables
from pagedrun.cli.bench.sheets.spread_text import show_number, show_ratio

if TYPE_CHECKING:
    from pagedrun.cli.page.document import Document, Headline
    from pagedrun.paged.bench.memory.memory_figures import MemoryBenchFigures

_HEIGHTS = {"at_once": 280, "sharing": 260, "over_time": 520, "block_sizes": 320}


def write_memory_page(
    result: "MemoryBenchFigures", lines: Seq[tuple[str, str]], path: Path
) -> None:
    """Write the figures of `bench memory` to `path` as a page; raises `OutputError`.

    `lines` are what was run, on what and when, each with its label.
    """
    memory_document(result, lines).write(path)


def memory_document(result: "MemoryBenchFigures", lines: Seq[tuple[str, str]]) -> "Document":
    """Return the page of the figures of `bench memory`."""
    from pagedrun.cli.page.document import Document

    tables = memory_tables(result)
    return Document(
        template="memory.html",
        scripts=("memory.js",),
        values={
            "headlines": _headlines(result),
            "lines": lines,
            "tables": tables,
            "heights": _HEIGHTS,
        },
        data={
            "at_once": result["at_once"],
            "sharing": result["sharing"],
            "over_time": result["over_time"],
            "block_sizes": result["block_sizes"],
            "block_size": result["block_size"],
            "shape": result["shape"],
        },
    )


def _headlines(result: "MemoryBenchFigures") -> "list[Headline]":
    from pagedrun.cli.page.document import Headline

    most = result["at_once"][-1]
    contiguous, paged = (most[way] for way in WAYS)
    flows = {way: result["over_time"][way] for way in WAYS}
    sharing = result["sharing"]
    headlines = [
        Headline(
            f"of held slots store a token, {most['requests']:,} requests at once",
            f"{paged['utilization']:.1%}",
            f"{contiguous['utilization']:.1%} if contiguous",
        ),
        Headline(
            "less memory for the same requests",
            show_ratio(contiguous["bytes"] / paged["bytes"]),
            f"in blocks of {result['block_size']:,} tokens",
        ),
        Headline(
            "requests in flight, on average",
            show_number(flows["paged"]["mean_running"]),
            f"{show_number(flows['contiguous']['mean_running'])} if contiguous, in the same memory",
        ),
    ]
    if sharing is None:
        return headlines
    prompt = sharing["prompt"]
    return [
        *headlines,
        Headline(
            f"blocks for {sharing['requests']:,} answers to a shared prompt",
            f"{prompt['blocks']:,}",
            f"{prompt['blocks_alone']:,} alone; {prompt['blocks_diverged']:,} when one continues",
        ),
    ]
