"""How the benches read settings to compare, lengths and lists of numbers."""

from typing import Any

import pytest

from pagedrun.cli.bench.options import changed_setting, comparison, lengths, numbers
from pagedrun.paged.bench.throughput import Comparison
from pagedrun.paged.bench.workload import Lengths
from pagedrun.paged.values.errors import UsageError


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("no-prefix-once", {"prefix_once": False}),
        ("--no-prefix-caching", {"prefix_caching": False}),
        ("prefix-once", {"prefix_once": True}),
        ("block-size=32", {"block_size": 32}),
        ("swap-space-bytes=1MiB", {"swap_space_bytes": 2**20}),
        ("gpu-memory-utilization=0.5", {"gpu_memory_utilization": 0.5}),
        ("enforce-eager", {"enforce_eager": True}),
        ("preemption-mode=recompute", {"preemption_mode": "recompute"}),
    ],
)
def test_what_compare_means(text: str, changes: dict[str, Any]) -> None:
    assert changed_setting(text) == changes


@pytest.mark.parametrize(
    ("text", "name", "changes"),
    [
        ("alone", "each row alone", {}),
        ("no-sharing", "no sharing", {"prefix_caching": False}),
    ],
)
def test_ways_to_share_less_are_no_flags(text: str, name: str, changes: dict[str, Any]) -> None:
    assert comparison(text) == Comparison(name, changes, alone=True)
    assert comparison("--block-size=8") == Comparison("--block-size=8", {"block_size": 8})


@pytest.mark.parametrize(
    ("text", "expected"), [("64", 64), ("100:1024", Lengths(100, 1024)), ("5:5", Lengths(5, 5))]
)
def test_what_a_length_means(text: str, expected: int | Lengths) -> None:
    assert lengths(text, "--unique") == expected


@pytest.mark.parametrize("text", ["", "a", "1:2:3", ":8", "8:", "-1", "1.5", "９"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(UsageError, match="--unique takes a number or a range"):
        lengths(text, "--unique")


def test_numbers_are_listed_once() -> None:
    assert numbers("4, 1,4", "--group") == [4, 1]
