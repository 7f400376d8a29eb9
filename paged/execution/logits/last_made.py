"""LastMade: what was made of a value, kept for the next request that brings the same one."""

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")
T = TypeVar("T")


class LastMade(Generic[V, T]):
    """Makes something of values, not again for the very object that came last.

    What a flag says is one object in all rows, and may be as long as a vocabulary.
    """

    def __init__(self, make: Callable[[V], T]) -> None:
        self._make = make
        self._last: tuple[V, T] | None = None

    def of(self, value: V) -> T:
        """Return what is made of a value, which must not change."""
        if self._last is None or self._last[0] is not value:
            self._last = (value, self._make(value))
        return self._last[1]
