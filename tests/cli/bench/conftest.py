"""The benches' command."""

from functools import partial

import pytest

from tests.support.command import Command


@pytest.fixture
def bench(pagedrun: Command) -> Command:
    return partial(pagedrun, "bench")
