"""Snapshot: the history of every block of a run's pools.

Columns of numbers in a NumPy archive. Token ids and texts are not part of it: a snapshot may be
passed on where the prompts may not. A model with several groups of layers adds the samples and
block tables of the further groups.
"""

import io
import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.cache_spec import PoolShape

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]
Chosen = Bools | Int64s

MAX_PREFIXES = 2_000  # nodes of the tree that are kept


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by name. `DTYPES` says what each holds, and is what a file is checked against."""

    DTYPES: ClassVar[dict[str, str]] = {}

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
        """Return the columns by name, in their order."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def records(self) -> list[dict[str, int]]:
        """Return each entry as its numbers, by the columns' names."""
        columns = {name: column.tolist() for name, column in self.columns().items()}
        every = zip(*columns.values(), strict=True)
        return [dict(zip(columns, each, strict=True)) for each in every]

    def where(self, chosen: Chosen) -> Self:
        """Return the entries that are chosen, by a mask or by their numbers."""
        return type(self)(**{name: column[chosen] for name, column in self.columns().items()})

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """Return a table of these sequences of numbers; a column that is not given is empty."""
        return cls(
            **{name: np.asarray(columns.get(name, ()), dtype) for name, dtype in cls.DTYPES.items()}
        )


@dataclass(frozen=True, slots=True)
class Holdings(Table):
    """Which sequence held which block, and when: one entry for each block of each residency.

    `row` and `sample` name the sequence, `position` is the block's place in its table. It was held
    in the steps [`begin`, `end`). `found` tells a block that was there
    with its content from one that was taken to be written. Ordered by `begin`.
    """

    row: Int32s
    sample: Int32s
    position: Int32s
    block: Int32s
    begin: Int32s
    end: Int32s
    found: Bools

    DTYPES: ClassVar[dict[str, str]] = dict.fromkeys(
        ("row", "sample", "position", "block", "begin", "end"), "int32"
    ) | {"found": "bool"}


@dataclass(frozen=True, slots=True)
class Preemptions(Table):
    """Every time a sequence gave way, in order.

    `swapped` tells a swap to host memory from blocks that were dropped, `tokens` is what it had
    stored, `blocks` how many it gave up. The cause: in `step`, the sequence of `for_row` needed
    `needed` blocks more, and `free` were free.
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

    DTYPES: ClassVar[dict[str, str]] = dict.fromkeys(
        ("step", "row", "sample", "tokens", "blocks", "for_row", "needed", "free"), "int32"
    ) | {"swapped": "bool"}


@dataclass(frozen=True, slots=True)
class Branchings(Table):
    """What became of the beams of rows behind steps, in order: see `Branching`.

    `forked` began on the blocks of other beams, `died` gave theirs back, of which `freed` had no
    other holder.
    """

    step: Int32s
    row: Int32s
    forked: Int32s
    died: Int32s
    freed: Int32s

    DTYPES: ClassVar[dict[str, str]] = dict.fromkeys(
        ("step", "row", "forked", "died", "freed"), "int32"
    )


@dataclass(frozen=True, slots=True)
class PrefixNodes(Table):
    """The tree of shared prefixes, parents before children; those that save most are kept.

    `parent` is an entry's number, -1 at the top. The node holds the tokens [`start`, `end`) of its
    `rows` rows, of which `row` is one; `saved` are the prompt tokens that whole blocks of it spare,
    beyond what the nodes above spare already.
    """

    parent: Int32s
    start: Int32s
    end: Int32s
    rows: Int32s
    row: Int32s
    saved: Int64s

    DTYPES: ClassVar[dict[str, str]] = dict.fromkeys(
        ("parent", "start", "end", "rows", "row"), "int32"
    ) | {"saved": "int64"}

    def joined(self, other: "PrefixNodes") -> "PrefixNodes":
        """Return the nodes of both trees side by side."""
        moved = np.where(other.parent >= 0, other.parent + np.int32(len(self)), other.parent)
        columns = replace(other, parent=moved.astype(np.int32)).columns()
        return PrefixNodes(
            **{name: np.append(column, columns[name]) for name, column in self.columns().items()}
        )

    def best(self, count: int) -> "PrefixNodes":
        """Return the `count` nodes that save most; what was between them joins the lower one."""
        kept = np.zeros(len(self) + 1, dtype=bool)
        chosen = np.argsort(-self.saved, kind="stable")[:count]
        kept[chosen[self.saved[chosen] > 0]] = True
        kept[-1] = True  # the top, which parents of -1 mean
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
    """How many sequences had a prompt, and an answer, of so many tokens: `tokens` rises."""

    tokens: Int32s
    prompts: Int64s
    answers: Int64s

    DTYPES: ClassVar[dict[str, str]] = {"tokens": "int32", "prompts": "int64", "answers": "int64"}


class HeldBlocks(NamedTuple):
    """The block tables of one group after a step, of the sequences that hold blocks.

    rows, samples: [num_sequences] int32, which they are. firsts, counts: [num_sequences] int32,
    the place in its table of the first block that each holds, and how many. blocks: [counts.sum()]
    int32, all of them, sequence by sequence.
    """

    rows: Int32s
    samples: Int32s
    firsts: Int32s
    counts: Int32s
    blocks: Int32s


@dataclass(frozen=True, slots=True)
class HeldTables(Table):
    """One entry for each block table at each sampled step, in the order of the steps.

    `moment` is the sample's number; the others are as in `HeldBlocks`.
    """

    moment: Int32s
    row: Int32s
    sample: Int32s
    first: Int32s
    count: Int32s

    DTYPES: ClassVar[dict[str, str]] = dict.fromkeys(
        ("moment", "row", "sample", "first", "count"), "int32"
    )


@dataclass(frozen=True, slots=True)
class GroupSamples:
    """One further group. `peak_blocks` were held at once at most, whether sampled or not.

    ref_counts, fills: [num_samples, num_blocks] uint16, as in `PoolSamples`. blocks:
    [tables.count.sum()] int32, those of all tables, one after the other.
    """

    shape: PoolShape
    peak_blocks: int
    ref_counts: NDArray[np.uint16]
    fills: NDArray[np.uint16]
    tables: HeldTables
    blocks: Int32s

    def tables_of(self, row: int, moment: int) -> list[tuple[int, int, Int32s]]:
        """Return the sample's number, the first place and the blocks of each table of a row."""
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
