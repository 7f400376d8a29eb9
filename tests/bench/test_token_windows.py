"""Windows over a text: every token is scored once, behind as many others as there may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.bench.accuracy import token_windows


@given(length=st.integers(2, 60), chunk=st.integers(2, 20), data=st.data())
def test_every_token_is_scored_once_and_behind_what_it_follows(
    length: int, chunk: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, chunk))
    scored: list[int] = []
    begin = 0
    for window in token_windows(range(length), chunk, stride):
        ids = window.token_ids
        assert ids == tuple(range(ids[0], ids[0] + len(ids)))
        assert len(ids) <= chunk
        assert ids[0] >= begin
        assert window.first >= 1
        begin = ids[0] + stride
        scored += ids[window.first :]
        assert window.num_scored == len(ids) - window.first
    if stride < chunk:
        assert scored == list(range(1, length))
    else:  # the first token of each window has nothing before it
        assert scored == [place for place in range(length) if place % chunk]


def test_a_token_has_the_chunk_less_the_stride_before_it() -> None:
    windows = token_windows(range(100), chunk=10, stride=4)
    assert [window.first for window in windows] == [1, *[6] * (len(windows) - 1)]


@pytest.mark.parametrize("length", [0, 1])
def test_nothing_is_scored_of_a_single_token(length: int) -> None:
    assert token_windows(range(length), 4, 4) == []
