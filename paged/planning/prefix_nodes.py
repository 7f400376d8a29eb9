"""The tree of a window's shared prefixes, as a snapshot keeps it."""

import numpy as np

from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.report.record.snapshot_tables import MAX_PREFIXES, PrefixNodes


def prefix_nodes(plan: Plan) -> PrefixNodes:
    """Return the `MAX_PREFIXES` nodes that save most; `row` is an index of the input."""
    nodes = plan.tree.nodes
    order = np.argsort(nodes.end, kind="stable")  # parents are shorter: they come first
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    shared = PrefixNodes.of(
        parent=place[nodes.parent[order]],
        start=nodes.start[order],
        end=nodes.end[order],
        rows=nodes.num_rows[order],
        row=nodes.row[order],
        saved=nodes.num_tokens_saved[order],
    ).best(MAX_PREFIXES)
    shared.row[:] = [plan.request(row).index for row in shared.row.tolist()]
    return shared
