"""What must be true of a snapshot's numbers before anybody reckons with them.

A file may come from anywhere: every number that is used as an index, a size or a loop's end is
held against its bounds here, once, when the file is read.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.report.record.group_samples import GroupSamples
from pagedrun.paged.report.record.snapshot import Snapshot

MAX_BLOCK_SIZE = 2**16 - 1  # fills are 16 bits wide
MAX_COUNT = 2**31 - 2
MAX_BYTES_PER_TOKEN = 2**40


def check_snapshot(snapshot: Snapshot) -> None:
    """Raise `ValueError` saying what cannot be, if anything in the snapshot cannot."""
    _within("block_size", snapshot.block_size, 0, MAX_BLOCK_SIZE)
    _within("num_blocks", snapshot.num_blocks, 0, MAX_COUNT)
    _within("bytes_per_token", snapshot.bytes_per_token, 0, MAX_BYTES_PER_TOKEN)
    _within("num_steps", snapshot.num_steps, 0, MAX_COUNT)
    _within("row_stride", snapshot.row_stride, 1, MAX_COUNT)
    _check_samples(snapshot)
    _check_holdings(snapshot)
    _check_tables(snapshot)
    _check_groups(snapshot)


def _check_samples(snapshot: Snapshot) -> None:
    samples = snapshot.samples
    _in_range("samples.steps", samples.steps, 0, snapshot.num_steps)
    _rising("samples.steps", samples.steps)
    if not np.isfinite(samples.times).all() or (samples.times < 0).any():
        raise ValueError("samples.times are not all seconds since the run began")
    if (np.diff(samples.times) < 0).any():
        raise ValueError("samples.times decrease")
    _in_range("samples.fills", samples.fills, 0, snapshot.block_size)


def _check_holdings(snapshot: Snapshot) -> None:
    held, last = snapshot.holdings, snapshot.num_steps + 1
    for name in ("row", "sample", "position", "begin"):
        _in_range(f"holdings.{name}", getattr(held, name), 0, MAX_COUNT)
    _in_range("holdings.block", held.block, 0, snapshot.num_blocks - 1)
    _in_range("holdings.end", held.end, 0, last)
    if (held.begin > held.end).any():
        raise ValueError("holdings end before they begin")
    if (np.diff(held.begin) < 0).any():
        raise ValueError("holdings are not sorted by their beginning")


def _check_tables(snapshot: Snapshot) -> None:
    gone, nodes, lengths = snapshot.preemptions, snapshot.prefixes, snapshot.lengths
    _in_range("branchings.step", snapshot.branchings.step, 0, snapshot.num_steps)
    for name in ("row", "forked", "died", "freed"):
        _in_range(f"branchings.{name}", getattr(snapshot.branchings, name), 0, MAX_COUNT)
    _in_range("preemptions.step", gone.step, 0, snapshot.num_steps + 1)
    for name in ("row", "sample", "tokens", "blocks", "needed", "free"):
        _in_range(f"preemptions.{name}", getattr(gone, name), 0, MAX_COUNT)
    _in_range("preemptions.for_row", gone.for_row, -1, MAX_COUNT)
    for name in ("start", "rows", "row", "saved"):
        _in_range(f"prefixes.{name}", getattr(nodes, name), 0, np.iinfo(np.int64).max // 2)
    if (nodes.parent < -1).any() or (nodes.parent >= np.arange(len(nodes))).any():
        raise ValueError("prefixes.parent is not an earlier node")
    if (nodes.start > nodes.end).any():
        raise ValueError("prefixes end before they start")
    _in_range("lengths.tokens", lengths.tokens, 0, MAX_COUNT)
    _rising("lengths.tokens", lengths.tokens)
    for name in ("prompts", "answers"):
        _in_range(f"lengths.{name}", getattr(lengths, name), 0, 2**53)


def _check_groups(snapshot: Snapshot) -> None:
    shapes = [each.shape for each in snapshot.further]
    if snapshot.first_group is not None:
        shapes.append(snapshot.first_group)
        if snapshot.first_group.num_blocks != snapshot.num_blocks:
            raise ValueError("the first group of layers has another pool")
    for shape in shapes:
        _within("groups.num_layers", shape.num_layers, 0, MAX_COUNT)
        _within("groups.window", shape.window or 1, 1, MAX_COUNT)
        _within("groups.num_blocks", shape.num_blocks, 1, MAX_COUNT)
        _within("groups.bytes_per_token", shape.bytes_per_token, 0, MAX_BYTES_PER_TOKEN)
    for group in snapshot.further:
        _check_group(group, len(snapshot.samples), snapshot.block_size)


def _check_group(group: GroupSamples, num_samples: int, block_size: int) -> None:
    num_blocks, tables = group.shape.num_blocks, group.tables
    _within("groups.peak_blocks", group.peak_blocks, 0, num_blocks)
    if not group.ref_counts.shape == group.fills.shape == (num_samples, num_blocks):
        raise ValueError("the samples of a group are of different lengths")
    _in_range("groups.fills", group.fills, 0, block_size)
    _in_range("groups.moment", tables.moment, 0, num_samples - 1)
    for name in ("row", "sample", "first", "count"):
        _in_range(f"groups.{name}", getattr(tables, name), 0, MAX_COUNT)
    if group.blocks.shape != (tables.count.sum(dtype=np.int64),):
        raise ValueError("the tables of a group do not match its blocks")
    _in_range("groups.blocks", group.blocks, 0, num_blocks - 1)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, outside {least} to {most}")


def _in_range(name: str, column: NDArray[Any], least: int, most: int) -> None:
    if column.size and (column.min() < least or column.max() > most):
        raise ValueError(f"{name} holds a number outside {least} to {most}")


def _rising(name: str, column: NDArray[Any]) -> None:
    if (np.diff(column) <= 0).any():
        raise ValueError(f"{name} do not increase")
