"""Table of replicas: the work of each engine, and the total.

A report read from a file is untrusted input: invalid figures are shown as 0.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

from rich import box
from rich.console import Console
from rich.table import Table

from pagedrun.cli.terminal.console import safe
from pagedrun.cli.terminal.units import show_size

MOST_SHOWN = 16  # on a screen
_MOST_DEATHS = 3  # with their causes, on a screen
_LEFT_OUT = ("pool", "at peak", "cached", "node")  # on a narrow screen, in this order


class ReplicaTable(TypedDict):
    """Cells as text under the column `names`; the last line is the total."""

    names: list[str]
    lines: list[list[str]]
    deaths: list[str]
    more: int


_COUNTS = ("rows", "prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens")
_POOL_COUNTS = ("num_blocks", "peak_blocks", "pool_bytes")


class _Replica(NamedTuple):
    """Entry of a replica; `counts` are those of `_COUNTS` and `_POOL_COUNTS`."""

    name: str
    node: str
    counts: Counter[str]
    died: str

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> "_Replica":
        kv = entry.get("kv")
        pool = kv if isinstance(kv, dict) else {}
        counts = Counter({name: _count(entry.get(name)) for name in _COUNTS})
        counts.update({name: _count(pool.get(name)) for name in _POOL_COUNTS})
        name, node = str(_count(entry.get("number"))), safe(str(entry.get("node", "")))
        return cls(name, node, counts, safe(str(entry.get("died", ""))))


def replica_table(report: Mapping[str, object], most: int | None = None) -> ReplicaTable | None:
    """Return the table of a report (the object in `OUT.report.json`), None for a single engine.

    most: maximum number of replicas shown, None for all; the total always includes all.
    """
    found = report.get("replicas")
    entries = found if isinstance(found, list | tuple) else []
    replicas = [_Replica.read(each) for each in entries if isinstance(each, dict)]
    if not replicas:
        return None
    nodes = {each.node for each in replicas}
    columns: dict[str, list[str]] = {"replica": [], "node": [], "rows": [], "computed": []}
    columns |= {"cached": [], "generated": [], "blocks": [], "at peak": [], "pool": []}
    shown = replicas[:most]
    sums: Counter[str] = Counter()
    for each in replicas:
        sums.update(each.counts)
    for name, node, counts, _ in [*shown, _Replica("total", "", sums, "")]:
        blocks = counts["num_blocks"]
        cells = [
            name,
            node,
            f"{counts['rows']:,}",
            f"{counts['computed_tokens']:,}",
            _share(counts["cached_tokens"], counts["prompt_tokens"]),
            f"{counts['generated_tokens']:,}",
            f"{blocks:,}" if blocks else "gone",
            _share(counts["peak_blocks"], blocks),
            show_size(counts["pool_bytes"]) if blocks else "",
        ]
        for cell, column in zip(cells, columns.values(), strict=True):
            column.append(cell)
    if len(nodes) == 1:
        del columns["node"]
    return {
        "names": list(columns),
        "lines": [list(line) for line in zip(*columns.values(), strict=True)],
        "deaths": [f"replica {each.name} died: {each.died}" for each in replicas if each.died],
        "more": len(replicas) - len(shown),
    }


def draw_replicas(report: Mapping[str, object], console: Console, width: int) -> None:
    """Print the table without a title, omitting columns that do not fit into `width`.

    Tokens include those of rows that another replica answered first.
    """
    table = replica_table(report, MOST_SHOWN)
    if table is None:
        return
    names, lines = table["names"], table["lines"]
    shown = list(range(len(names)))
    for name in _LEFT_OUT:
        if _width(names, lines, shown) > width:
            shown = [index for index in shown if names[index] != name]
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for index in shown:
        drawn.add_column(names[index], justify="left" if names[index] == "node" else "right")
    *each, total = ([line[index] for index in shown] for line in lines)
    for cells in each:
        drawn.add_row(*cells)
    if table["more"]:
        drawn.add_row("…", *[""] * (len(shown) - 1))
    drawn.add_row(*total, style="bold")
    console.print(drawn)
    if table["more"]:
        console.print(f"  and {table['more']:,} more, listed in the report", soft_wrap=True)
    for told in table["deaths"][:_MOST_DEATHS]:
        console.print(f"  {told}"[:width], soft_wrap=True, markup=False, highlight=False)
    if len(table["deaths"]) > _MOST_DEATHS:
        more = len(table["deaths"]) - _MOST_DEATHS
        console.print(f"  and {more:,} more died, listed in the report", soft_wrap=True)


def _width(names: Sequence[str], lines: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    widest = (max(len(names[index]), *(len(line[index]) for line in lines)) for index in shown)
    return sum(widest) + 3 * (len(shown) - 1)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if math.isfinite(value) and abs(value) <= 2**53 else 0
