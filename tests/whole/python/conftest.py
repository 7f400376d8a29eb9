"""One small model for all tests of the Python API."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest

from pagedrun.paged.llm import LLM, CompletionIterator
from tests.conftest import MakeModel


class SharedLLM(LLM):
    """An LLM that several tests use, one after the other."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._begun: WeakSet[CompletionIterator] = WeakSet()

    def as_completed(self, *args: Any, **named: Any) -> CompletionIterator:
        completions = super().as_completed(*args, **named)
        self._begun.add(completions)
        return completions

    def free(self) -> None:
        """End what is not iterated to its end: the traceback of a failed test keeps it alive."""
        for completions in list(self._begun):
            completions.close()


@pytest.fixture(scope="package")
def shared_llm(make_model: MakeModel) -> SharedLLM:
    return SharedLLM(make_model("llama", "python"), dtype="float32", block_size=16, max_num_seqs=32)


@pytest.fixture
def llm(shared_llm: SharedLLM) -> Iterator[LLM]:
    yield shared_llm
    shared_llm.free()
