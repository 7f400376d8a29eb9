"""ShownPrefix: a node of the tree of shared prefixes, for those who draw or list it."""

from dataclasses import dataclass

import numpy as np

from pagedrun.paged.report.record.snapshot_tables import PrefixNodes


@dataclass(frozen=True, slots=True)
class ShownPrefix:
    """A prefix of `end` tokens that `rows` rows begin with; `row` is one of them.

    `parent` is the place, in the same list, of the longest listed prefix inside it; None at the
    top. `start` is where that one ends.
    `saved` are prompt tokens.
    """

    parent: int | None
    start: int
    end: int
    rows: int
    row: int
    saved: int


def top_prefixes(nodes: PrefixNodes, count: int) -> list[ShownPrefix]:
    """Return the nodes that save most, parents before children, in the order of the tree."""
    best = np.sort(np.argsort(-nodes.saved, kind="stable")[:count])
    place_of = {node: place for place, node in enumerate(best.tolist())}
    parents = nodes.parent
    shown = []
    for node in place_of:
        above = int(parents[node])
        while above >= 0 and above not in place_of:  # what is not listed is passed over
            above = int(parents[above])
        shown.append(
            ShownPrefix(
                parent=place_of.get(above),
                start=int(nodes.end[above]) if above >= 0 else 0,
                end=int(nodes.end[node]),
                rows=int(nodes.rows[node]),
                row=int(nodes.row[node]),
                saved=int(nodes.saved[node]),
            )
        )
    return shown
