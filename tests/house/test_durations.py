"""A test that takes long says why it must."""

import pytest

from tests.processor_time import MOST, measured


def test_a_heavy_test_says_why(request: pytest.FixtureRequest) -> None:
    longest = {name for name, seconds in measured()["tests"].items() if seconds > MOST}
    items = [item for item in request.session.items if item.nodeid in longest]
    reasons = {item.nodeid: item.get_closest_marker("heavy") for item in items}
    assert not [name for name, reason in reasons.items() if reason is None or not reason.args]
