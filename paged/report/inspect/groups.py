"""The groups of layers of a run: their pools, and what a row held in them."""

import numpy as np

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.report.inspect.block_states import BlockState, block_states
from pagedrun.paged.report.inspect.inspection_sections import (
    GroupTable,
    HeldBlock,
    InspectedGroup,
    StateCounts,
)
from pagedrun.paged.report.inspect.moment import Moment
from pagedrun.paged.report.inspect.pool_moments import sample_counts
from pagedrun.paged.report.inspect.saved_report import SavedReport
from pagedrun.paged.report.record.group_samples import GroupSamples
from pagedrun.paged.report.record.snapshot import PoolSamples, Snapshot


def inspected_groups(snapshot: Snapshot, moment: Moment | None) -> list[InspectedGroup]:
    """Return the pool of each group, none for a model with a single one."""
    first = snapshot.first_group
    if first is None:
        return []
    held = np.count_nonzero(snapshot.samples.ref_counts, axis=1)
    shapes = [first, *(group.shape for group in snapshot.further)]
    peaks = [int(held.max(initial=0)), *(group.peak_blocks for group in snapshot.further)]
    pools = [snapshot.samples, *(_samples_of(snapshot, group) for group in snapshot.further)]
    size = snapshot.block_size
    return [
        _group(
            shape, peak, None if moment is None else sample_counts(pool, moment.number, size), size
        )
        for shape, peak, pool in zip(shapes, peaks, pools, strict=True)
    ]


def reported_groups(report: SavedReport) -> list[InspectedGroup]:
    """Return the same as far as a report tells it."""
    return [{**each, "moment": None} for each in report.groups]


def group_tables(snapshot: Snapshot, row: int, moment: Moment) -> list[GroupTable]:
    """Return the block tables of a row's samples in the groups behind the first."""
    found: list[GroupTable] = []
    for number, group in enumerate(snapshot.further, start=1):
        states = block_states(_samples_of(snapshot, group), moment.number)
        ref_counts, fills = group.ref_counts[moment.number], group.fills[moment.number]
        for sample, first, blocks in group.tables_of(row, moment.number):
            held: list[HeldBlock] = [
                {
                    "logical": logical,
                    "physical": block,
                    "ref_count": int(ref_counts[block]),
                    "state": BlockState(states[block]).name.lower(),
                    "tokens": int(fills[block]),
                }
                for logical, block in enumerate(blocks.tolist(), start=first)
            ]
            shape = group.shape
            found.append(
                {
                    "group": number,
                    "num_layers": shape.num_layers,
                    "window": shape.window,
                    "sample": sample,
                    "blocks": held,
                }
            )
    return found


def _samples_of(snapshot: Snapshot, group: GroupSamples) -> PoolSamples:
    """Return the samples of the pool of a further group."""
    samples = snapshot.samples
    return PoolSamples(samples.steps, samples.times, group.ref_counts, group.fills)


def _group(
    shape: PoolShape, peak: int, moment: StateCounts | None, block_size: int
) -> InspectedGroup:
    return {
        "num_layers": shape.num_layers,
        "window": shape.window,
        "num_blocks": shape.num_blocks,
        "bytes_per_token": shape.bytes_per_token,
        "pool_bytes": shape.num_bytes(block_size),
        "peak_blocks": peak,
        "peak_bytes": peak * block_size * shape.bytes_per_token,
        "moment": moment,
    }
