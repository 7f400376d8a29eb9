"""What travels between driver and replicas, cut so that it fits into messages."""

import random

import pytest

from pagedrun.paged.replicas.ray_actor import (
    CALL_PIECES,
    MESSAGE_BYTES,
    in_calls,
    in_pieces,
    whole,
)

INLINED, INLINED_A_CALL = 100 * 1024, 10 * 2**20  # what Ray takes into a message


@pytest.mark.parametrize("num_pieces", [0, 1, 3, 2 * CALL_PIECES])
def test_values_are_whole_again_however_large(num_pieces: int) -> None:
    size = num_pieces * MESSAGE_BYTES
    value = {"rows": random.Random(size).randbytes(size), "size": size}
    assert whole(in_pieces(value)) == value
    calls = list(in_calls(value))
    assert [place for place, _, _ in calls] == list(range(len(calls)))
    assert {count for _, count, _ in calls} == {len(calls)}
    assert whole(piece for _, _, pieces in calls for piece in pieces) == value
    for _, _, pieces in calls:
        assert max(map(len, pieces)) < INLINED
        assert sum(map(len, pieces)) < INLINED_A_CALL
