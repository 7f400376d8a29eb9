"""Sorting and walking rows of tokens, against Python's own sort and a walk over plain prefixes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.kernels import token_rows
from pagedrun.kernels.token_rows import sort_rows, walk_tree

Rows = list[list[int]]
ROWS = st.lists(st.lists(st.sampled_from([0, 1, 255, 65_536]), max_size=9), max_size=60)


def flat(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return np.array([token for row in rows for token in row], dtype=np.int32), offsets


def num_common(one: list[int], two: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )


@given(rows=ROWS)
def test_rows_are_sorted_like_lists(rows: Rows) -> None:
    order, common = sort_rows(*flat(rows))
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: (rows[i], i))
    neighbours = [num_common(rows[a], rows[b]) for a, b in pairwise(order)]
    assert common.tolist() == [0, *neighbours][: len(rows)]


@pytest.mark.parametrize("num_rows", [15, 16, 17, 31, 33, 1000])
def test_every_number_of_runs(num_rows: int) -> None:
    rng = np.random.default_rng(num_rows)
    rows = [rng.integers(0, 3, rng.integers(0, 12)).tolist() for _ in range(num_rows)]
    order, common = sort_rows(*flat(rows))
    assert order.tolist() == sorted(range(num_rows), key=lambda i: (rows[i], i))
    assert common[1:].tolist() == [num_common(rows[a], rows[b]) for a, b in pairwise(order)]


def brute_walk(rows: Rows, weight: list[int]) -> list[int]:
    """Walk by splitting rows on their next token, heaviest part first."""

    def walk(members: list[int], depth: int) -> list[int]:
        parts: dict[int | tuple[str, int], list[int]] = {}
        for member in members:
            ended = len(rows[member]) == depth
            parts.setdefault(("end", member) if ended else rows[member][depth], []).append(member)
        if len(parts) == 1 and len(members) > 1:
            return walk(members, depth + 1)
        ordered = sorted(parts.values(), key=lambda part: -max(weight[m] for m in part))
        return [m for part in ordered for m in (part if len(part) == 1 else walk(part, depth + 1))]

    return walk(sorted(range(len(rows)), key=lambda i: (rows[i], i)), 0) if rows else []


@given(rows=ROWS, data=st.data())
def test_the_walk_puts_the_heaviest_sibling_first(rows: Rows, data: st.DataObject) -> None:
    weight = [data.draw(st.integers(1, 4)) for _ in rows]
    order, common = sort_rows(*flat(rows))
    walk = walk_tree(common, np.array(weight, dtype=np.int64)[order], 2, 3)
    walked = order[walk.order].tolist()
    assert walked == brute_walk(rows, weight)
    neighbours = [num_common(rows[a], rows[b]) for a, b in pairwise(walked)]
    assert walk.common.tolist() == [0, *neighbours][: len(rows)]
    check_nodes(rows, walked, walk)


def check_nodes(rows: Rows, walked: list[int], walk: object) -> None:
    """Each node is one prefix at which rows part, and its rows are side by side."""
    depth, parent = walk.node_depth, walk.node_parent  # type: ignore[attr-defined]
    size, first = walk.node_size, walk.node_first  # type: ignore[attr-defined]
    assert (parent[0], depth[0], size[0]) == (-1, 0, len(rows))
    seen = set()
    for node in range(1, len(depth)):
        prefix = rows[walked[first[node]]][: depth[node]]
        members = [i for i, row in enumerate(walked) if rows[row][: depth[node]] == prefix]
        assert members == list(range(first[node], first[node] + size[node]))
        assert len(members) > 1
        seen.add(tuple(prefix))
        above = parent[node]
        assert depth[above] < depth[node]
        assert first[above] <= first[node] < first[above] + size[above]
    branches = {
        tuple(rows[a][: num_common(rows[a], rows[b])])
        for i, a in enumerate(walked)
        for b in walked[:i]
    }
    assert seen == branches - {()}


def test_groups_are_the_smallest_subtrees_that_are_large_enough() -> None:
    company, task = [1] * 4, [2] * 4
    rows = [[*company, *task, 10 + i] for i in range(4)] + [[*company, 5], [*company, 6], [9]]
    order, common = sort_rows(*flat(rows))
    walk = walk_tree(common, np.ones(7, dtype=np.int64), 4, 4)
    assert order.tolist() == [0, 1, 2, 3, 4, 5, 6]
    depths = walk.node_depth[walk.group].tolist()
    assert depths == [8, 8, 8, 8, 4, 4, 0]
    assert walk.level.tolist() == [2, 2, 2, 2, 1, 1, 0]


def test_nothing_to_sort() -> None:
    order, common = sort_rows(*flat([]))
    walk = walk_tree(common, np.zeros(0, dtype=np.int64), 4, 4)
    assert len(order) == len(common) == len(walk.order) == 0
    assert walk.node_size.tolist() == [0]


def test_another_thread_sorts_alone_beside_a_pool_that_is_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numba's own pool ends the process if two threads use it at once."""
    rng = np.random.default_rng(7)
    rows = flat([rng.integers(0, 3, rng.integers(0, 12)).tolist() for _ in range(500)])
    expected = sort_rows(*rows)
    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    launched: list[None] = []
    for name in ("_sort_runs", "_merge_runs"):
        function = getattr(token_rows, name)

        def refused(*_: object) -> None:
            launched.append(None)

        refused.py_func = function.py_func  # type: ignore[attr-defined]
        monkeypatch.setattr(token_rows, name, refused)
    with ThreadPoolExecutor(1) as other:
        order, common = other.submit(sort_rows, *rows).result()
    assert not launched
    assert np.array_equal(order, expected[0])
    assert np.array_equal(common, expected[1])
