"""The page of `bench memory`: its tables, and beside each a chart."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from pagedrun.cli.bench.memory_sheets import WAYS, memory_tables
from pagedrun.cli.bench.spread_text import show_number, show_ratio
from pagedrun.cli.page.document import Document
from pagedrun.cli.page.headline import Headline

_SHOWN = ("at_once", "sharing", "over_time", "block_sizes")
_HEIGHTS = {"at_once": 280, "sharing": 260, "over_time": 520, "block_sizes": 320}


def write_memory_page(result: Mapping[str, Any], lines: Seq[tuple[str, str]], path: Path) -> None:
    """Write the result of `bench memory` to `path` as a page; raises `OutputError`.

    `lines` are what was run, on what and when, each with its label.
    """
    memory_document(result, lines).write(path)


def memory_document(result: Mapping[str, Any], lines: Seq[tuple[str, str]]) -> Document:
    """Return the page of a framed result of `bench memory`."""
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
        data={name: result[name] for name in (*_SHOWN, "block_size", "shape")},
    )


def _headlines(result: Mapping[str, Any]) -> list[Headline]:
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
            f"{prompt['blocks_alone']:,} alone; {prompt['blocks_diverged']:,} once one goes on",
        ),
    ]
