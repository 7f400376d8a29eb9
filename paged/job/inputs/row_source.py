"""RowSource: where rows come from, whatever the kind of input."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.values.errors import UsageError


@dataclass(slots=True)
class InputFacts:
    """Facts about an input as a whole, known once its first row is read.

    `notes` are sentences for the user, by what they are about. `columns` are the names of all
    columns, in order; None if each row has its own. `schema` is that of Arrow tables.
    """

    notes: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    schema: Any = None


class RowSource(Protocol):
    """The rows of an open input, once and in order; memory does not grow with their number.

    A bad row is yielded with its `error`. Iterating raises `UsageError`, which names the input,
    where the input as a whole cannot be read on.
    """

    @property
    def facts(self) -> InputFacts:
        """What is known of the input so far."""
        ...

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the rows so far, unpacked: what windows are cut by."""
        ...

    def __iter__(self) -> Iterator[Row]:
        """Yield each row; raises `UsageError` if there is none."""
        ...

    def digest(self, *, whole: bool) -> InputDigest:
        """Return what was read so far; `whole` says whether that is all there is."""
        ...

    def drain(self) -> bool:
        """Read what is left for the digest, without making rows of it.

        Returns false where that may take forever or a download: pipes, and datasets on the hub.
        """
        ...


class EmptyInput(UsageError):
    """An input has no row."""


def refuse_empty(name: str) -> EmptyInput:
    """Return the refusal of an input without rows."""
    return EmptyInput(f"{name}: empty input, there is no row to answer")
