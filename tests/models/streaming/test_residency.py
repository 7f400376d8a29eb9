"""Residency: what stays in memory, and the places of what is read."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pagedrun.paged.models.streaming.residency import PAGE_BYTES, Residency

SIZES = st.lists(st.integers(1, 9).map(lambda pages: pages * PAGE_BYTES), min_size=1, max_size=30)


def pass_by_reading(residency: Residency) -> int:
    """Return the bytes that a pass reads, by what lies in the ring after it."""
    ring: dict[int, int] = {}
    num_bytes = 0
    for _ in range(2):
        num_bytes = 0
        for index, (size, place) in enumerate(zip(residency.sizes, residency.places, strict=True)):
            if place is None:
                continue
            pages = range(place, place + size, PAGE_BYTES)
            if any(ring.get(page) != index for page in pages):
                num_bytes += size
            ring |= dict.fromkeys(pages, index)
    return num_bytes


@given(SIZES, st.integers(0, 400))
def test_memory_is_kept_and_bytes_are_counted(sizes: Sequence[int], pages: int) -> None:
    num_bytes = pages * PAGE_BYTES
    residency = Residency.within(sizes, num_bytes)
    if residency is None:
        assert num_bytes < Residency.least_bytes(sizes)
        return
    assert residency.sizes == tuple(sizes)
    assert residency.pinned_bytes + residency.ring_bytes <= num_bytes
    for size, place in zip(sizes, residency.places, strict=True):
        if place is not None:
            assert 0 <= place <= residency.ring_bytes - size
            assert place % PAGE_BYTES == 0
    assert residency.pass_bytes == pass_by_reading(residency)


@given(SIZES)
def test_the_least_memory_is_enough(sizes: Sequence[int]) -> None:
    assert Residency.within(sizes, Residency.least_bytes(sizes)) is not None
    assert Residency.within(sizes, sum(sizes)) == Residency(tuple(sizes), (None,) * len(sizes), 0)


@given(SIZES, st.integers(0, 200))
def test_more_memory_reads_no_more(sizes: Sequence[int], pages: int) -> None:
    least = Residency.least_bytes(sizes)
    less = Residency.within(sizes, least)
    more = Residency.within(sizes, least + pages * PAGE_BYTES)
    assert less is not None
    assert more is not None
    assert more.pinned_bytes >= less.pinned_bytes or not more.pass_bytes


def test_a_large_head_is_pinned_before_layers() -> None:
    sizes = [2 * PAGE_BYTES] * 10 + [9 * PAGE_BYTES]
    residency = Residency.within(sizes, (9 + 6) * PAGE_BYTES)
    assert residency is not None
    assert residency.places[-1] is None
    assert residency.num_streamed == 10


def test_a_large_head_is_read_where_nothing_can_be_pinned() -> None:
    sizes = [2 * PAGE_BYTES] * 10 + [9 * PAGE_BYTES]
    residency = Residency.within(sizes, 9 * PAGE_BYTES)
    assert residency is not None
    assert residency.num_streamed == 11
    assert residency.ring_bytes == 9 * PAGE_BYTES


def test_pinned_layers_are_spread_evenly() -> None:
    sizes = [PAGE_BYTES] * 12
    residency = Residency.within(sizes, (3 + 6) * PAGE_BYTES)
    assert residency is not None
    assert [place is None for place in residency.places] == [True, False] * 6


def test_neighbors_have_different_places() -> None:
    """The next entry is read while one is computed, the first while the last is."""
    for count in range(4, 20):
        residency = Residency.within([PAGE_BYTES] * count, 3 * PAGE_BYTES)
        assert residency is not None
        places = [*residency.places, residency.places[0]]
        assert all(one != other for one, other in pairwise(places))
