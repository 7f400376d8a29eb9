"""The lines of replicas in the live display: one for each, of many those that need a look first."""

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from pagedrun.cli.terminal.safe_text import safe
from pagedrun.paged.report.record.replica_state import ReplicaState

MOST_SHOWN = 12
TITLE = "replicas"


def draw_replicas(replicas: Sequence[ReplicaState], most: int = MOST_SHOWN) -> RenderableType:
    """Return a line for each of up to `most` replicas, and one that counts the others."""
    shown = _chosen(replicas, most)
    has_nodes = len({each.node for each in replicas if each.node}) > 1
    cells = [
        [
            str(each.number),
            safe(each.node) if has_nodes else "",
            f"{each.rows:,} rows",
            f"{each.tokens_per_s:,.0f} tokens/s" if each.is_running else "",
        ]
        for each in shown
    ]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for each, line in zip(shown, cells, strict=True):
        title = TITLE if each is shown[0] else ""
        told = [f"{title:<{len(TITLE)}}"]
        told += [
            " " * (width - cell_len(cell)) + cell for cell, width in zip(line, widths, strict=True)
        ]
        text = Text(" ".join(cell for cell in told if cell), no_wrap=True, overflow="ellipsis")
        lines.append(text.append(f" {safe(each.at)}", "" if each.is_well else "yellow"))
    numbers = {each.number for each in shown}
    others = [each for each in replicas if each.number not in numbers]
    if others:
        stages = Counter(each.stage for each in others).most_common()
        counts = ", ".join(f"{count:,} {stage}" for stage, count in stages)
        told_more = f"{'':<{len(TITLE)}} and {len(others):,} more: {counts}"
        lines.append(Text(told_more, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _chosen(replicas: Sequence[ReplicaState], most: int) -> list[ReplicaState]:
    """Return up to `most` by their numbers: those that are not well come before the others."""
    if len(replicas) <= most:
        return list(replicas)
    urgent = sorted(replicas, key=lambda each: (each.is_well, each.number))[: max(most - 1, 1)]
    return sorted(urgent, key=lambda each: each.number)
