"""Interfaces of model, engine and run as used by a job, so that its tests need no weights."""

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
    """Part of `ModelConfig` that bounds a request."""

    @property
    def vocab_size(self) -> int:
        """Number of logits; every token id is below it."""

    @property
    def max_position_embeddings(self) -> int:
        """Longest context supported by the model, in tokens."""


class RunLike(Protocol):
    """Part of `Run` read by a job; iterated once.

    `is_cut`: a deadline may have left rows that were not started.
    """

    is_cut: bool

    def __iter__(self) -> Iterator[Completion]:
        """Yield exactly one completion for each request, as they finish."""

    def close(self) -> None:
        """Stop background work; the input is read no further."""

    def report(self) -> EngineReport:
        """Return the contents of the report file, without the rows."""

    def state(self) -> Mapping[str, object]:
        """Return running and waiting sequences with their resources; thread-safe."""

    def snapshot(self) -> Snapshot | Mapping[int, Snapshot] | None:
        """Return the history of every block of the pool; of replicas, of each by its number.

        None for a run without a pool.
        """


class EngineLike(Protocol):
    """Part of `Engine` used by a job."""

    def warm_up(self, on_compile: Callable[[], None] = ...) -> None:
        """Compile kernels ahead of the run.

        `on_compile` is called before the first compilation.
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

        Args:
            more: Further windows, read and planned in another thread while earlier ones run.
            done: Indices of requests without a completion, because they are already answered.
            earlier: Answers to reuse; their requests are not run.
            deadline: End of the job. The order of rows is random, and rows that would not finish in
                time are not started.
        """


class OpenModel(Protocol):
    """Model with known configuration and tokenizer, before its weights are read.

    All input errors are found with it, before the minutes that weights may take.
    """

    @property
    def config(self) -> ModelShape:
        """Configuration of the model."""

    @property
    def tokenizer(self) -> TokenizerLike:
        """Tokenizer, with the chat template in force."""

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return the errors of structures that no answer can have."""

    def arithmetic(self) -> Mapping[str, object]:
        """Return everything that the last bits of answers depend on, as plain JSON values."""

    def load_engine(self) -> EngineLike:
        """Read the weights."""


ModelOpener = Callable[[EngineConfig, Path, str | None], OpenModel]
"""Opens (engine configuration, tokenizer folder, chat template or None for the folder's own)."""
