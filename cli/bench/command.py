"""Command of a benchmark: its flags, and its figures as lines, tables and a page."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pagedrun.cli.bench.tables import Sheet
from pagedrun.cli.options.flags import Flags, TypedValues

if TYPE_CHECKING:
    from pagedrun.cli.page.document import Document

Figures = TypeVar("Figures")
Made = TypeVar("Made", covariant=True)


class Bench(Protocol[Made]):
    """A benchmark with its settings."""

    def run(self, say: Callable[[str], None], /) -> Made:
        """Measure, reporting progress to `say`; return the figures."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCommand(Generic[Figures]):
    """Subcommand `name` of `pagedrun bench`.

    `bench` makes the benchmark of typed values and raises `UsageError`; with `has_defaults` the
    values include those of the environment and the configuration file. `described` are lines by
    their labels. `page` makes the page of figures and labelled lines.
    """

    name: str
    help: str
    flags: Flags
    bench: Callable[[TypedValues], Bench[Figures]]
    described: Mapping[str, Callable[[Figures], str]]
    sheets: Callable[[Figures], list[Sheet]]
    page: "Callable[[Figures, Seq[tuple[str, str]]], Document] | None" = None
    has_defaults: bool = False
