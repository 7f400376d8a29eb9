"""SharedBlocks: which samples, or beams, of a row hold the same blocks."""

from collections.abc import Sequence

from pagedrun.paged.report.inspect.block_table import BlockTable
from pagedrun.paged.report.inspect.inspection_sections import SharedBlocks


def shared_blocks(tables: Sequence[BlockTable]) -> list[SharedBlocks]:
    """Return the stretches of blocks that several of a row's tables have in common, in order.

    A block of the pool has the same place in each table that holds it.
    """
    holders: dict[tuple[int, int], list[int]] = {}
    for table in tables:
        for entry in table.entries:
            holders.setdefault((entry.logical, entry.physical), []).append(table.sample)
    found: list[SharedBlocks] = []
    last: dict[tuple[int, ...], SharedBlocks] = {}
    for (logical, _), samples in sorted(holders.items()):
        stretch = last.get(tuple(samples))
        if len(samples) < 2:
            continue
        if stretch is not None and stretch["last"] == logical - 1:
            stretch["last"] = logical
        else:
            stretch = {"samples": samples, "first": logical, "last": logical}
            last[tuple(samples)] = stretch
            found.append(stretch)
    return found
