"""One server for all commands of a session."""

from collections.abc import Iterator

import pytest

from tests.whole.command_server import CommandServer


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    with CommandServer() as running:
        yield running
