"""Counts of a class's instances, for tests of what is kept in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Alive:
    """Instances of some classes that were made since counting began and are not gone, by id.

    Instances report their beginning and end themselves, in whatever thread. `gc.get_objects` is no
    substitute while other threads run: it hands out tuples that are being built, and CPython then
    raises `SystemError` where they are built.
    """

    def __init__(self) -> None:
        self._facts: dict[int, object] = {}

    def __len__(self) -> int:
        return len(self._facts)

    def facts(self) -> list[Any]:
        """Return what `fact` gave of each instance that is alive."""
        return list(self._facts.values())

    def watch(
        self, monkeypatch: pytest.MonkeyPatch, kind: type, fact: Callable[[Any], object]
    ) -> None:
        """Count instances of a class whose `__init__` makes all of them."""
        begin: Callable[..., None] = vars(kind)["__init__"]

        def counted(instance: Any, *args: Any, **named: Any) -> None:
            begin(instance, *args, **named)
            self._facts[id(instance)] = fact(instance)

        def gone(instance: Any) -> None:
            self._facts.pop(id(instance), None)  # none: it was there before

        monkeypatch.setattr(kind, "__init__", counted)
        monkeypatch.setattr(kind, "__del__", gone, raising=False)


@contextmanager
def count_alive(*kinds: type, fact: Callable[[Any], object] = id) -> Iterator[Alive]:
    """Count instances of classes without a `__del__` that are made within the block.

    fact: what to remember of an instance while it is alive.
    """
    alive = Alive()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for kind in kinds:
            alive.watch(monkeypatch, kind, fact)
        yield alive
