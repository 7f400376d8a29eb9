"""Snapshot: what became of every block of the pool in a run.

Token ids and texts are not in it: a snapshot may be passed on where the prompts may not.
"""

import io
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.report.record.group_columns import group_columns, group_facts
from pagedrun.paged.report.record.group_samples import GroupSamples
from pagedrun.paged.report.record.snapshot_tables import (
    Branchings,
    Float64s,
    Holdings,
    Int64s,
    Lengths,
    Preemptions,
    PrefixNodes,
    Table,
)

FORMAT = 1
TABLES: dict[str, type[Table]] = {
    "holdings": Holdings,
    "preemptions": Preemptions,
    "prefixes": PrefixNodes,
    "lengths": Lengths,
    "branchings": Branchings,
}
FACTS = ("block_size", "num_blocks", "bytes_per_token", "num_steps", "row_stride")


@dataclass(frozen=True, slots=True)
class PoolSamples:
    """The whole pool at some of the steps, as it was when the step had been launched.

    steps: [num_samples] int64, rising. times: [num_samples] float64, seconds since the run began.
    ref_counts: [num_samples, num_blocks] uint16, holders of each block. fills: the same shape,
    tokens that it stores; a block without holders that stores some is cached.
    """

    steps: Int64s
    times: Float64s
    ref_counts: NDArray[np.uint16]
    fills: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One run's pool, block by block. Bytes per token are those of all layers.

    Of a model with several groups of layers it is the pool of the first, which keeps whole
    sequences: `first_group` is its shape then, and `further` are the others.
    `row_stride`: holdings and branchings are those of rows whose index it divides; 1 means all.
    `num_steps` is how many steps the run had. Counts of tokens and hits are in the report.
    """

    block_size: int
    num_blocks: int
    bytes_per_token: int
    num_steps: int
    row_stride: int
    samples: PoolSamples
    holdings: Holdings
    preemptions: Preemptions
    prefixes: PrefixNodes
    lengths: Lengths
    branchings: Branchings = field(default_factory=Branchings.of)
    first_group: PoolShape | None = None
    further: tuple[GroupSamples, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the snapshot as a NumPy archive (.npz)."""
        facts: dict[str, object] = {"format": FORMAT} | {
            name: getattr(self, name) for name in FACTS
        }
        if self.first_group is not None:
            facts |= group_facts(self.first_group, self.further)
        columns: dict[str, NDArray[Any]] = {
            "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
            "samples.steps": self.samples.steps,
            "samples.times": self.samples.times,
            "samples.ref_counts": self.samples.ref_counts,
            "samples.fills": self.samples.fills,
        }
        for table in TABLES:
            for name, column in getattr(self, table).columns().items():
                columns[f"{table}.{name}"] = column
        columns |= group_columns(self.further)
        archive = io.BytesIO()
        np.savez_compressed(archive, allow_pickle=False, **columns)
        return archive.getvalue()
