"""The further groups of layers of a snapshot, as its file has them."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.report.record.group_samples import GroupSamples, HeldTables

MAX_GROUPS = 64


def group_facts(first: PoolShape, further: Seq[GroupSamples]) -> dict[str, object]:
    """Return the numbers of all groups, the first included, as JSON can hold them."""
    groups = [asdict(first), *(asdict(each.shape) for each in further)]
    return {"groups": groups, "peak_blocks": [each.peak_blocks for each in further]}


def group_columns(further: Seq[GroupSamples]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the groups behind the first, by name."""
    found: dict[str, NDArray[Any]] = {}
    for number, each in enumerate(further, start=1):
        columns = each.tables.columns()
        columns |= {"ref_counts": each.ref_counts, "fills": each.fills, "blocks": each.blocks}
        found |= {f"group{number}.{name}": column for name, column in columns.items()}
    return found


def read_groups(
    facts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]
) -> tuple[PoolShape | None, tuple[GroupSamples, ...]]:
    """Return the first group's shape and the others, of a file that may have none.

    Raises `ValueError`, `KeyError` or `TypeError` for what cannot be read.
    """
    if "groups" not in facts:
        return None, ()
    if len(facts["groups"]) > MAX_GROUPS:
        raise ValueError("it has far too many groups of layers")
    first, *shapes = (_shape(each) for each in facts["groups"])
    peaks = [_count(each) for each in facts["peak_blocks"]]
    return first, tuple(
        _group(shape, peak, columns, f"group{number}")
        for number, (shape, peak) in enumerate(zip(shapes, peaks, strict=True), start=1)
    )


def _shape(numbers: Mapping[str, Any]) -> PoolShape:
    found = {each.name: numbers[each.name] for each in fields(PoolShape)}
    window = found.pop("window")
    return PoolShape(
        window=None if window is None else _count(window),
        **{name: _count(value) for name, value in found.items()},
    )


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("the facts of its groups are not counts")
    return value


def _group(
    shape: PoolShape, peak: int, columns: Mapping[str, NDArray[Any]], name: str
) -> GroupSamples:
    return GroupSamples(
        shape=shape,
        peak_blocks=peak,
        ref_counts=columns[f"{name}.ref_counts"].astype(np.uint16, casting="safe"),
        fills=columns[f"{name}.fills"].astype(np.uint16, casting="safe"),
        tables=HeldTables(**{each: columns[f"{name}.{each}"] for each in HeldTables.DTYPES}),
        blocks=columns[f"{name}.blocks"].astype(np.int32, casting="safe"),
    )
