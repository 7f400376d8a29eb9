"""One server for all commands of a session, oracles, and early captures of decode steps."""

from collections.abc import Iterator

import pytest

from tests.support.oracle import Oracle
from tests.whole.command_server import CommandServer


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    with CommandServer() as running:
        yield running


@pytest.fixture(scope="module")
def oracles() -> dict[str, Oracle]:
    """Oracles of a file so far, by model: made once, whatever the order of its tests."""
    return {}


@pytest.fixture
def captures_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture steps of a shape when the second one comes: for runs that are short."""
    from pagedrun.paged.execution import decode_graphs

    monkeypatch.setattr(decode_graphs, "CAPTURE_COST", 2 * decode_graphs.LAUNCHED_COST)
