"""The tables of a snapshot: columns of numbers, equally long within a table."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

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
