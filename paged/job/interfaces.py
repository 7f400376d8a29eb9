"""Interfaces of tokenizer, engine and run as used by a job, so that its tests need no weights."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pagedrun.paged.metrics.report_sections import EngineReport
from pagedrun.paged.metrics.snapshot import Snapshot
from pagedrun.paged.metrics.timeline import NO_HOOKS, RunHooks
from pagedrun.paged.planning.plan_part import EarlierAnswers
from pagedrun.paged.text.prompt import TokenizerLike
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.structure import Structure


class ModelShape(Protocol):
    """The part of `ModelConfig` that bounds a request."""

    @property
    def vocab_size(self) -> int:
        """Number of logits; every token id is below it."""

    @property
    def max_position_embeddings(self) -> int:
        """Longest context that the model was made for, in tokens."""


class RunLike(Protocol):
    """The part of `Run` that a job reads; iterated once.

    `is_cut` tells whether rows may be left that were not begun, because of a deadline.
    """

    is_cut: bool

    def __iter__(self) -> Iterator[Completion]:
        """Yield exactly one completion for each request, as they finish."""

    def close(self) -> None:
        """End what the run does beside its steps; nothing is read from its input any more."""

    def report(self) -> EngineReport:
        """Return what happened, in the shape of the report file, without the rows."""

    def state(self) -> Mapping[str, object]:
        """Return what runs and waits now and what it holds; any thread may ask."""

    def snapshot(self) -> Snapshot | Mapping[int, Snapshot]:
        """Return what became of every block of the pool; of replicas, of each by its number."""


class EngineLike(Protocol):
    """The part of `Engine` that a job drives."""

    def warm_up(self, on_compile: Callable[[], None] = ...) -> None:
        """Compile what a run will use, so that its own time is spent on rows.

        `on_compile` is called if something is compiled.
        """

    def start(
        self,
        requests: Sequence[Request],
        *,
        more: Iterable[Sequence[Request]] | None = None,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> RunLike:
        """Plan the requests and return their run.

        `more` are further windows, asked for and planned in a thread of their own while those
        before run. `done` are indices of requests that are answered already and get no completion.
        Requests that `earlier` has the
        answers of get these for completions, and are not run. With a `deadline` the order of rows
        is drawn, and rows that would not be finished by then are not begun.
        """


class OpenModel(Protocol):
    """A model whose shape and tokenizer are known and whose weights are not yet read.

    Every mistake in the input is found with it, before the minutes that weights may take.
    """

    @property
    def config(self) -> ModelShape:
        """Return the model's shape."""

    @property
    def tokenizer(self) -> TokenizerLike:
        """Return the tokenizer, with the chat template in force."""

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return those of the structures that no answer can have, and why."""

    def arithmetic(self) -> Mapping[str, object]:
        """Return what the last bits of every answer depend on, as plain JSON values."""

    def load_engine(self) -> EngineLike:
        """Read the weights."""


ModelOpener = Callable[[EngineConfig, Path, str | None], OpenModel]
"""Opens (engine configuration, tokenizer folder, chat template or None for the folder's own)."""
