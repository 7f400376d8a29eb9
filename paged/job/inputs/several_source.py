"""SeveralSource: the rows of several inputs, one after the other, as if they were one."""

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.row import Columns, Row, default_id, id_column
from pagedrun.paged.job.inputs.row_source import (
    EmptyInput,
    InputFacts,
    RowSource,
    refuse_empty,
)

# Where the name of a row's input comes back; the next one if the row has a column of that name.
FILE_COLUMNS = ("file", "input_file", "input_file_name")

OpenSource = Callable[[str], AbstractContextManager[RowSource]]


class SeveralSource:
    """The rows of the inputs `names`, opened by `open_source` as they are come to; implements
    `RowSource`.

    A row's index counts those of all inputs, its line those of its own. Inputs without a row are
    passed over, unless all are empty.
    """

    def __init__(self, names: Sequence[str], open_source: OpenSource) -> None:
        self._names = names
        self._open_source = open_source
        self._facts = InputFacts(columns=())  # of the inputs that were read
        self._num_begun = 0
        self._source: RowSource | None = None  # the one that is being read
        self._digests: list[InputDigest] = []  # of those before it
        self._num_bytes = 0  # of their rows
        self._rows = self._read()

    @property
    def facts(self) -> InputFacts:
        """What is known of the inputs so far; of notes about the same, the first."""
        return self._facts if self._source is None else _both(self._facts, self._source.facts)

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the rows so far, unpacked."""
        return self._num_bytes + (0 if self._source is None else self._source.num_bytes_read)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def digest(self, *, whole: bool) -> InputDigest:
        """Return the bytes of all inputs so far, and a digest of the digests of each."""
        digests = list(self._digests)
        if self._source is not None:
            digests.append(self._source.digest(whole=whole))
        text = "".join(f"{each.num_bytes} {each.sha256} {each.fingerprint}\n" for each in digests)
        num_bytes = sum(each.num_bytes for each in digests)
        return InputDigest(num_bytes, hashlib.sha256(text.encode()).hexdigest(), whole)

    def drain(self) -> bool:
        """Read what is left of each input; false if one of them cannot be."""
        can_all = self._source is None or self._source.drain()
        while can_all and self._num_begun < len(self._names):
            self._leave()
            name = self._names[self._num_begun]
            self._num_begun += 1
            with self._open_source(name) as source:
                can_all = source.drain()
                self._digests.append(source.digest(whole=can_all))
        return can_all

    def close(self) -> None:
        """Close the input that is being read."""
        with suppress(ValueError):  # a thread is still reading, which ends with the process
            self._rows.close()

    def _read(self) -> Generator[Row, None, None]:
        index = 0
        while self._num_begun < len(self._names):
            name = self._names[self._num_begun]
            self._num_begun += 1
            with self._open_source(name) as source:
                self._source = source
                try:
                    for row in source:
                        yield _placed(row, index, name)
                        index += 1
                except EmptyInput:
                    pass
                self._leave()
        if index == 0:
            raise refuse_empty(", ".join(self._names))

    def _leave(self) -> None:
        """Keep what is to be known of the input that was read."""
        source, self._source = self._source, None
        if source is not None:
            self._num_bytes += source.num_bytes_read
            self._facts = _both(self._facts, source.facts)
            self._digests.append(source.digest(whole=True))


def _both(one: InputFacts, other: InputFacts) -> InputFacts:
    """Return what is known of two inputs that are read as one."""
    notes = {**other.notes, **one.notes}
    if one.columns is None or other.columns is None:
        return InputFacts(notes)
    columns = tuple(dict.fromkeys((*one.columns, *other.columns)))
    return InputFacts(notes, columns, _unified(one, other))


def _unified(one: InputFacts, other: InputFacts) -> Any:
    """Return the Arrow schema of both, None where a column is of two types."""
    if not one.columns or other.schema is None:
        return other.schema
    if one.schema is None:
        return None
    import pyarrow

    try:
        return pyarrow.unify_schemas([one.schema.remove_metadata(), other.schema.remove_metadata()])
    except pyarrow.ArrowException:
        return None


def _placed(row: Row, index: int, name: str) -> Row:
    """Return a row of the input `name` with its place among those of all inputs."""
    has_own_id = id_column(row.columns) is not None and row.error is None
    return replace(
        row,
        index=index,
        id=row.id if has_own_id else default_id(index),
        columns=_with_file(row.columns, name),
        written=None if row.written is None else _with_file(row.written, name),
        file=name,
    )


def _with_file(columns: Columns, name: str) -> Columns:
    column = next((each for each in FILE_COLUMNS if each not in columns), FILE_COLUMNS[-1])
    return {**columns, column: name}
