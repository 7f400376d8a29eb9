"""Table of replicas: the work of each engine, and the total.

A report read from a file is untrusted input: invalid figures are shown as 0.
"""

import math
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


class _Replica(NamedTuple):
    number: int
    node: str
    rows: int
    prompt: int
    cached: int
    computed: int
    generated: int
    blocks: int
    peak: int
    pool: int
    died: str

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> "_Replica":
        kv = entry.get("kv")
        pool = kv if isinstance(kv, dict) else {}
        return cls(
            _count(entry.get("number")),
            safe(str(entry.get("node", ""))),
            _count(entry.get("rows")),
            _count(entry.get("prompt_tokens")),
            _count(entry.get("cached_tokens")),
            _count(entry.get("computed_tokens")),
            _count(entry.get("generated_tokens")),
            _count(pool.get("num_blocks")),
            _count(pool.get("peak_blocks")),
            _count(pool.get("pool_bytes")),
            safe(str(entry.get("died", ""))),
        )


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
    total = _total(replicas)
    for each in [*shown, total]:
        cells = [
            "total" if each is total else str(each.number),
            "" if each is total else each.node,
            f"{each.rows:,}",
            f"{each.computed:,}",
            _share(each.cached, each.prompt),
            f"{each.generated:,}",
            f"{each.blocks:,}" if each.blocks else "gone",
            _share(each.peak, each.blocks),
            show_size(each.pool) if each.blocks else "",
        ]
        for cell, column in zip(cells, columns.values(), strict=True):
            column.append(cell)
    if len(nodes) == 1:
        del columns["node"]
    return {
        "names": list(columns),
        "lines": [list(line) for line in zip(*columns.values(), strict=True)],
        "deaths": [f"replica {each.number} died: {each.died}" for each in replicas if each.died],
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
            shown = [place for place in shown if names[place] != name]
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for place in shown:
        drawn.add_column(names[place], justify="left" if names[place] == "node" else "right")
    *each, total = ([line[place] for place in shown] for line in lines)
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


def _total(replicas: Sequence[_Replica]) -> _Replica:
    return _Replica(
        number=0,
        node="",
        rows=sum(each.rows for each in replicas),
        prompt=sum(each.prompt for each in replicas),
        cached=sum(each.cached for each in replicas),
        computed=sum(each.computed for each in replicas),
        generated=sum(each.generated for each in replicas),
        blocks=sum(each.blocks for each in replicas),
        peak=sum(each.peak for each in replicas),
        pool=sum(each.pool for each in replicas),
        died="",
    )


def _width(names: Sequence[str], lines: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    widest = (max(len(names[place]), *(len(line[place]) for line in lines)) for place in shown)
    return sum(widest) + 3 * (len(shown) - 1)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if math.isfinite(value) and abs(value) <= 2**53 else 0
