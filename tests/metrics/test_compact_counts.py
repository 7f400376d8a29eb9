"""Counts of a pool in 16 bits."""

from array import array

from pagedrun.paged.metrics.recorder import _compact


def test_a_count_beyond_16_bits_is_the_largest_and_no_remainder() -> None:
    assert _compact(array("i", [0, 3, 65535, 65536, 70_000])).tolist() == [0, 3, *[65535] * 3]
