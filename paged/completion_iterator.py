"""CompletionIterator: completions as they finish, and the end of the work on them."""

from collections.abc import Generator, Iterator
from weakref import finalize

from pagedrun.paged.values.request import Completion


class CompletionIterator(Iterator[Completion]):
    """Iterates over what a generator yields.

    The generator is closed by `close`, when the iterator is dropped, and before Python ends: later
    it could neither end its thread nor report.
    """

    def __init__(self, completions: Generator[Completion, None, None]) -> None:
        self._completions = completions
        self._end = finalize(self, completions.close)

    def __next__(self) -> Completion:
        return next(self._completions)

    def close(self) -> None:
        """End the iteration; what is not answered yet never will be."""
        self._end()
