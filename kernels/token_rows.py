"""Rows of token ids: sorted, and walked along the tree that their common prefixes make.

Knows no noun of the engine. Compiled, since a file may hold a million rows of hundreds of tokens.
The sort is a merge sort that carries along how much each row has in common with the one before it
(W. Ng and K. Kakehi, "Merging string sequences by longest common prefixes", 2008): no token of a
row is compared twice with an equal one, so templates that agree for pages cost no more than
prompts that differ at once.
"""

from collections.abc import Callable
from functools import cache
from threading import current_thread, main_thread
from typing import Any, NamedTuple

import numba
import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.kernels.code_cache import CachedKernel
from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.kernels.numba_compiler import KernelCompiler

_FIRST_RUN = 16  # rows that are sorted by insertion before merging begins


class TreeWalk(NamedTuple):
    """A depth-first walk of the rows' tree, siblings with the most weight first.

    order: [num_rows] int64, places in the sorted list. common: [num_rows] int32, tokens in common
    with the row walked before (0 for the first). group: [num_rows] int32, the number of the
    smallest subtree around each row that has at least `group_size` rows; 0 is the whole tree.
    level: [num_rows] int32, how many shared prefixes, one inside the other, the row begins with.

    Inner nodes, one for each prefix at which rows part: node_depth: [num_nodes] int32, its tokens.
    node_parent: [num_nodes] int32, -1 for the root, which is node 0. node_size: [num_nodes] int64,
    rows below it. node_first: [num_nodes] int64, the first of these in walking order.
    """

    order: Int64s
    common: Int32s
    group: Int32s
    level: Int32s
    node_depth: Int32s
    node_parent: Int32s
    node_size: Int64s
    node_first: Int64s


def sort_rows(tokens: Int32s, offsets: Int64s) -> tuple[Int64s, Int32s]:
    """Sort rows by their tokens; a row comes before its continuations, equal rows in input order.

    tokens: [num_tokens] int32, all rows one after the other; row i is
    `tokens[offsets[i]:offsets[i + 1]]`. offsets: [num_rows + 1] int64.

    Returns order: [num_rows] int64, and common: [num_rows] int32, the length of the common prefix
    of rows `order[i - 1]` and `order[i]`, 0 for the first.
    """
    num_rows = len(offsets) - 1
    numba.set_num_threads(min(cpu_quota(), int(numba.config.NUMBA_NUM_THREADS)))
    sort_runs, merge_runs = _sorting()
    order = np.arange(num_rows, dtype=np.int64)
    common = np.zeros(num_rows, dtype=np.int32)
    sort_runs(tokens, offsets, order, common, _FIRST_RUN)
    other_order, other_common = np.empty_like(order), np.empty_like(common)
    width = _FIRST_RUN
    while width < num_rows:
        merge_runs(tokens, offsets, order, common, other_order, other_common, width)
        order, other_order = other_order, order
        common, other_common = other_common, common
        width *= 2
    return order, common


def walk_tree(common: Int32s, weight: Int64s, block_size: int, group_size: int) -> TreeWalk:
    """Walk the tree of sorted rows depth first, among siblings the one with the most weight first.

    common: [num_rows] int32 as `sort_rows` gives it. weight: [num_rows] int64, in sorted order; a
    subtree weighs what its heaviest row does, and equal weights keep the sorted order. Every
    subtree stays in one piece. Levels and groups lie at least a whole block of `block_size`
    tokens below one another.
    """
    num_rows = len(common)
    parent, depth, key, num_nodes = _build_tree(common, weight)
    parent, key = parent[: num_rows + num_nodes], key[: num_rows + num_nodes]
    depth = depth[:num_nodes]
    # Children of one node side by side, heaviest first; what ties keeps the sorted order, in which
    # a node is represented by its first row.
    place = np.concatenate([np.arange(num_rows), _first_rows(parent, num_rows, num_nodes)])
    children = np.lexsort((place, -key, parent))[1:]  # the root, whose parent is -1, comes first
    starts = np.searchsorted(parent[children], np.arange(num_nodes + 1)).astype(np.int64)
    children, deepest_first = children.astype(np.int64), np.argsort(-depth)
    return TreeWalk(
        *_walk(parent, depth, deepest_first, children, starts, num_rows, block_size, group_size),
    )


def _compiled(parallel: bool) -> Callable[[Callable[..., Any]], Any]:
    """Compile on the first call; keep the machine code on disk where there is a place for it."""

    def compile_lazily(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {
            "parallel": parallel,
            "nogil": True,
            "no_cfunc_wrapper": True,
            "pipeline_class": KernelCompiler,
        }
        return CachedKernel.of(numba.njit(**options)(function))

    return compile_lazily


def _sorting() -> tuple[Any, Any]:
    """Return what sorts runs and what merges them, for the thread that asks.

    Numba's own pool of threads ends the process if two threads use it at once, and the main thread
    may be computing: another one then sorts alone.
    """
    if numba.threading_layer() == "workqueue" and current_thread() is not main_thread():
        return _sorting_alone()
    return _sort_runs, _merge_runs


@cache
def _sorting_alone() -> tuple[Any, Any]:
    alone = numba.njit(nogil=True)  # not kept on disk, where it would pass for the parallel one
    return alone(_sort_runs.py_func), alone(_merge_runs.py_func)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _match(tokens: Any, offsets: Any, one: Any, two: Any, known: Any) -> Any:
    """Return the length of two rows' common prefix, of which `known` tokens are known."""
    start, other = offsets[one], offsets[two]
    length = min(offsets[one + 1] - start, offsets[two + 1] - other)
    while known < length and tokens[start + known] == tokens[other + known]:
        known += 1
    return known


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _is_before(tokens: Any, offsets: Any, one: Any, two: Any, common: Any) -> Any:
    """Return whether row `one` sorts before row `two`, or is equal."""
    start, other = offsets[one], offsets[two]
    if start + common == offsets[one + 1]:
        return True
    if other + common == offsets[two + 1]:
        return False
    return tokens[start + common] < tokens[other + common]


@_compiled(parallel=True)
def _sort_runs(tokens: Any, offsets: Any, order: Any, common: Any, width: Any) -> None:
    """Sort each run of `width` rows by insertion."""
    num_rows = order.shape[0]
    for run in numba.prange((num_rows + width - 1) // width):
        low, high = run * width, min((run + 1) * width, num_rows)
        for i in range(low + 1, high):
            row, place = order[i], i
            while place > low:
                before = order[place - 1]
                shared = _match(tokens, offsets, before, row, 0)
                if _is_before(tokens, offsets, before, row, shared):
                    break
                order[place] = before
                place -= 1
            order[place] = row
        common[low] = 0
        for i in range(low + 1, high):
            common[i] = _match(tokens, offsets, order[i - 1], order[i], 0)


@_compiled(parallel=True)
def _merge_runs(
    tokens: Any, offsets: Any, order: Any, common: Any, out: Any, out_common: Any, width: Any
) -> None:
    """Merge neighboring sorted runs of `width` rows two by two.

    `left_common` and `right_common` are what the next row of either run has in common with the
    row written last. Where they differ, the run with more goes on, without a look at its tokens.
    """
    num_rows = order.shape[0]
    for pair in numba.prange((num_rows + 2 * width - 1) // (2 * width)):
        left = 2 * width * pair
        middle = min(left + width, num_rows)
        right, end = middle, min(left + 2 * width, num_rows)
        left_common, right_common = 0, 0
        for place in range(left, end):
            take_left = right >= end
            if left < middle and right < end:
                if left_common == right_common:
                    one, two = order[left], order[right]
                    shared = _match(tokens, offsets, one, two, left_common)
                    take_left = _is_before(tokens, offsets, one, two, shared)
                    if take_left:
                        out_common[place], right_common = left_common, shared
                    else:
                        out_common[place], left_common = right_common, shared
                else:
                    take_left = left_common > right_common
                    out_common[place] = left_common if take_left else right_common
            else:
                out_common[place] = left_common if take_left else right_common
            if take_left:
                out[place] = order[left]
                left += 1
                left_common = common[left] if left < middle else 0
            else:
                out[place] = order[right]
                right += 1
                right_common = common[right] if right < end else 0


@_compiled(parallel=False)
def _build_tree(common: Any, weight: Any) -> Any:
    """Return parent and key of rows and nodes, depth of nodes, and the number of nodes.

    A node's number is `num_rows` + its place among the nodes. Nodes are found as the intervals of
    equal common prefixes (Abouelhoda, Kurtz and Ohlebusch, 2004), with a stack of open ones.
    """
    num_rows = common.shape[0]
    parent = np.full(2 * num_rows + 1, -1, dtype=np.int32)
    key = np.zeros(2 * num_rows + 1, dtype=np.int64)
    depth = np.zeros(num_rows + 1, dtype=np.int32)
    stack = np.zeros(num_rows + 1, dtype=np.int32)
    num_nodes, top = 1, 0  # the root is open from the start
    for row in range(num_rows + 1):
        before = common[row] if row < num_rows else 0
        while depth[stack[top]] > before:
            closed = stack[top]
            top -= 1
            if depth[stack[top]] < before:
                top += 1
                stack[top] = num_nodes
                depth[num_nodes] = before
                num_nodes += 1
            above = stack[top]
            parent[num_rows + closed] = above
            key[num_rows + above] = max(key[num_rows + above], key[num_rows + closed])
        if row == num_rows:
            break
        after = common[row + 1] if row + 1 < num_rows else 0
        if after > depth[stack[top]]:
            top += 1
            stack[top] = num_nodes
            depth[num_nodes] = after
            num_nodes += 1
        parent[row] = stack[top]
        key[row] = weight[row]
        key[num_rows + stack[top]] = max(key[num_rows + stack[top]], weight[row])
    return parent, depth, key, num_nodes


@_compiled(parallel=False)
def _first_rows(parent: Any, num_rows: Any, num_nodes: Any) -> Any:
    """Return the first row, in sorted order, below each node."""
    first = np.full(num_nodes, -1, dtype=np.int64)
    for row in range(num_rows):
        node = parent[row]
        while node >= 0 and first[node] < 0:
            first[node] = row
            node = parent[num_rows + node]
    return first


@_compiled(parallel=False)
def _walk(
    parent: Any,
    depth: Any,
    deepest_first: Any,
    children: Any,
    starts: Any,
    num_rows: Any,
    block_size: Any,
    group_size: Any,
) -> Any:
    """Walk from the root; `children[starts[node]:starts[node + 1]]` are a node's, in order."""
    num_nodes = depth.shape[0]
    size = np.zeros(num_nodes, dtype=np.int64)
    for row in range(num_rows):
        size[parent[row]] += 1
    node_parent = parent[num_rows : num_rows + num_nodes].copy()
    # A node's children were all closed before it, but it may have a smaller number than they.
    for node in deepest_first:
        if node_parent[node] >= 0:
            size[node_parent[node]] += size[node]
    order = np.empty(num_rows, dtype=np.int64)
    common = np.zeros(num_rows, dtype=np.int32)
    group = np.zeros(num_rows, dtype=np.int32)
    level = np.zeros(num_rows, dtype=np.int32)
    node_group = np.zeros(num_nodes, dtype=np.int32)
    node_level = np.zeros(num_nodes, dtype=np.int32)
    first = np.zeros(num_nodes, dtype=np.int64)
    following = starts[:-1].copy()
    stack = np.zeros(num_nodes, dtype=np.int32)
    top, num_walked, shared = 0, 0, 0
    while top >= 0:
        node = stack[top]
        place = following[node]
        if place == starts[node + 1]:
            top -= 1
            continue
        following[node] += 1
        if place > starts[node]:
            shared = depth[node]  # the walk came back to here since the last row
        child = children[place]
        if child < num_rows:
            order[num_walked] = child
            common[num_walked] = shared if num_walked else 0
            group[num_walked] = node_group[node]
            level[num_walked] = node_level[node]
            num_walked += 1
            continue
        below = child - num_rows
        around = node_group[node]
        deep = depth[below] - depth[around] >= block_size
        node_group[below] = below if deep and size[below] >= group_size else around
        deeper = depth[below] // block_size > depth[node] // block_size
        node_level[below] = node_level[node] + (1 if deeper else 0)
        first[below] = num_walked
        top += 1
        stack[top] = below
    return order, common, group, level, depth, node_parent, size, first
