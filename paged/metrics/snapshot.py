"""Snapshot: the history of every block of a run's pools.

Columns of numbers in a NumPy archive, without token ids and texts: a snapshot may be shared where
prompts may not. A model with several groups of layers adds the samples and block tables of the
further groups.
"""

import io
import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.array_types import Bools, Float64s, Int32s, Int64s, element_types
from pagedrun.paged.cache.cache_spec import PoolShape

Chosen = Bools | Int64s

MAX_PREFIXES = 2_000


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by name; `DTYPES` are their element types, against which files are checked."""

    DTYPES: ClassVar[dict[str, type[np.generic]]] = {}

    def __init_subclass__(cls) -> None:
        cls.DTYPES = element_types(cls.__annotations__)

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns().values()}
        if len(lengths) > 1:
            raise ValueError(f"the columns of {type(self).__name__} are of different lengths")
        for name, column in self.columns().items():
            if column.ndim != 1 or column.dtype != self.DTYPES[name]:
                raise ValueError(
                    f"{type(self).__name__}.{name} is {column.dtype} of {column.ndim} dimensions"
                )

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name, in order."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def records(self) -> list[dict[str, int]]:
        """Return each entry as a dict of its numbers."""
        columns = {name: column.tolist() for name, column in self.columns().items()}
        every = zip(*columns.values(), strict=True)
        return [dict(zip(columns, each, strict=True)) for each in every]

    def where(self, chosen: Chosen) -> Self:
        """Return the chosen entries, by a mask or by indices."""
        return type(self)(**{name: column[chosen] for name, column in self.columns().items()})

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """Return a table of these columns; a missing column is empty."""
        return cls(
            **{name: np.asarray(columns.get(name, ()), dtype) for name, dtype in cls.DTYPES.items()}
        )


@dataclass(frozen=True, slots=True)
class Holdings(Table):
    """Blocks held by sequences: one entry for each block of each residency, ordered by `begin`.

    `row`, `sample`: the sequence; `position`: of the block in its table. Held in the steps
    [`begin`, `end`). `found`: taken with its content from the cache.
    """

    row: Int32s
    sample: Int32s
    position: Int32s
    block: Int32s
    begin: Int32s
    end: Int32s
    found: Bools


@dataclass(frozen=True, slots=True)
class Preemptions(Table):
    """Preemptions of sequences, in order.

    `swapped`: to host memory, rather than dropped; `tokens`: stored ones; `blocks`: released ones.
    Cause: in `step`, the sequence of `for_row` needed `needed` more blocks, and `free` were free.
    """

    step: Int32s
    row: Int32s
    sample: Int32s
    swapped: Bools
    tokens: Int32s
    blocks: Int32s
    for_row: Int32s
    needed: Int32s
    free: Int32s


@dataclass(frozen=True, slots=True)
class Branchings(Table):
    """Beam events of rows after steps, in order; see `Branching`."""

    step: Int32s
    row: Int32s
    forked: Int32s
    died: Int32s
    freed: Int32s


@dataclass(frozen=True, slots=True)
class PrefixNodes(Table):
    """Tree of shared prefixes, parents before children, limited to those that save most.

    `parent`: index of the entry, -1 at the root. The node holds the tokens [`start`, `end`) of its
    `rows` rows, `row` among them; `saved`: prompt tokens saved by whole blocks of it, beyond those
    saved by its ancestors.
    """

    parent: Int32s
    start: Int32s
    end: Int32s
    rows: Int32s
    row: Int32s
    saved: Int64s

    def joined(self, other: "PrefixNodes") -> "PrefixNodes":
        """Return the nodes of both trees side by side."""
        moved = np.where(other.parent >= 0, other.parent + np.int32(len(self)), other.parent)
        columns = replace(other, parent=moved.astype(np.int32)).columns()
        return PrefixNodes(
            **{name: np.append(column, columns[name]) for name, column in self.columns().items()}
        )

    def best(self, count: int) -> "PrefixNodes":
        """Return the `count` nodes that save most; removed nodes are merged into their
        descendants."""
        kept = np.zeros(len(self) + 1, dtype=bool)
        chosen = np.argsort(-self.saved, kind="stable")[:count]
        kept[chosen[self.saved[chosen] > 0]] = True
        kept[-1] = True  # the root, index -1
        above = np.append(self.parent, -1)
        around = self.parent
        while not kept[around].all():
            around = np.where(kept[around], around, above[around])
        places = np.cumsum(kept) - 1
        places[-1] = -1
        start = np.where(around >= 0, np.append(self.end, 0)[around], 0)
        contracted = replace(
            self, parent=places[around].astype(np.int32), start=start.astype(np.int32)
        )
        return contracted.where(kept[:-1])


@dataclass(frozen=True, slots=True)
class Lengths(Table):
    """Number of sequences by length of prompt and of answer: `tokens` rises."""

    tokens: Int32s
    prompts: Int64s
    answers: Int64s


class HeldBlocks(NamedTuple):
    """Block tables of one group after a step, of the sequences that hold blocks.

    rows, samples: [num_sequences] int32, the sequences. firsts, counts: [num_sequences] int32,
    table position of the first held block of each, and number of blocks. blocks: [counts.sum()]
    int32, concatenated.
    """

    rows: Int32s
    samples: Int32s
    firsts: Int32s
    counts: Int32s
    blocks: Int32s


@dataclass(frozen=True, slots=True)
class HeldTables(Table):
    """One entry for each block table at each sampled step, in the order of the steps.

    `moment`: number of the sample; the others as in `HeldBlocks`.
    """

    moment: Int32s
    row: Int32s
    sample: Int32s
    first: Int32s
    count: Int32s


@dataclass(frozen=True, slots=True)
class GroupSamples:
    """Samples of a further group. `peak_blocks`: the maximum of held blocks, sampled or not.

    ref_counts, fills: [num_samples, num_blocks] uint16, as in `PoolSamples`. blocks:
    [tables.count.sum()] int32, of all tables, concatenated.
    """

    shape: PoolShape
    peak_blocks: int
    ref_counts: NDArray[np.uint16]
    fills: NDArray[np.uint16]
    tables: HeldTables
    blocks: Int32s

    def tables_of(self, row: int, moment: int) -> list[tuple[int, int, Int32s]]:
        """Return sample, first position and blocks of each table of a row."""
        ends = np.cumsum(self.tables.count, dtype=np.int64)
        (mine,) = np.nonzero((self.tables.row == row) & (self.tables.moment == moment))
        return [
            (
                int(self.tables.sample[place]),
                int(self.tables.first[place]),
                self.blocks[ends[place] - self.tables.count[place] : ends[place]],
            )
            for place in mine.tolist()
        ]


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
    """State of the whole pool after some of the steps were launched.

    steps: [num_samples] int64, rising. times: [num_samples] float64, seconds since the run began.
    ref_counts: [num_samples, num_blocks] uint16, holders of each block. fills: the same shape,
    tokens stored in it; a block with tokens and without holders is cached.
    """

    steps: Int64s
    times: Float64s
    ref_counts: NDArray[np.uint16]
    fills: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Block history of a run. Bytes per token are those of all layers.

    With several groups of layers the pool is that of the first, which keeps whole sequences:
    `first_group` is its shape, `further` the others. `row_stride`: holdings and branchings are
    those of rows whose index it divides; 1 means all. Token and hit counts are in the report.
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


MAX_GROUPS = 64


def group_facts(first: PoolShape, further: Seq[GroupSamples]) -> dict[str, object]:
    """Return the shapes of all groups, as JSON values."""
    groups = [asdict(first), *(asdict(each.shape) for each in further)]
    return {"groups": groups, "peak_blocks": [each.peak_blocks for each in further]}


def group_columns(further: Seq[GroupSamples]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the further groups, by name."""
    found: dict[str, NDArray[Any]] = {}
    for number, each in enumerate(further, start=1):
        columns = each.tables.columns()
        columns |= {"ref_counts": each.ref_counts, "fills": each.fills, "blocks": each.blocks}
        found |= {f"group{number}.{name}": column for name, column in columns.items()}
    return found


def read_groups(
    facts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]
) -> tuple[PoolShape | None, tuple[GroupSamples, ...]]:
    """Return the shape of the first group and the samples of the others, if the file has groups.

    Raises `ValueError`, `KeyError` or `TypeError` for invalid contents.
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
