"""The tree of shared prefixes of a window, or of a part of one, as a snapshot keeps it."""

import numpy as np

from pagedrun.kernels.token_rows import walk_tree
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.tree.prefix_tree import MIN_GROUP_ROWS, TreeNodes
from pagedrun.paged.planning.units.plan_part import PlanPart
from pagedrun.paged.report.record.snapshot_tables import MAX_PREFIXES, PrefixNodes


def prefix_nodes(plan: Plan) -> PrefixNodes:
    """Return the `MAX_PREFIXES` nodes that save most; `row` is an index of the input."""
    shared = _best(plan.tree.nodes)
    shared.row[:] = [plan.request(row).index for row in shared.row.tolist()]
    return shared


def part_nodes(part: PlanPart) -> PrefixNodes:
    """Return those of the rows of a part alone."""
    common = part.num_common_tokens.copy()
    common[:1] = 0
    # Rows of equal weight are walked in the order that they have.
    walk = walk_tree(common, np.zeros(len(part), np.int64), part.block_size, MIN_GROUP_ROWS)
    indices = np.array([request.index for request in part.requests], dtype=np.int64)
    return _best(TreeNodes.of(walk, indices, part.block_size))


def _best(nodes: TreeNodes) -> PrefixNodes:
    order = np.argsort(nodes.end, kind="stable")  # parents are shorter: they come first
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    return PrefixNodes.of(
        parent=place[nodes.parent[order]],
        start=nodes.start[order],
        end=nodes.end[order],
        rows=nodes.num_rows[order],
        row=nodes.row[order],
        saved=nodes.num_tokens_saved[order],
    ).best(MAX_PREFIXES)
