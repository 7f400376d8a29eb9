"""PrefixTree: tree of the common prefixes of all prompts of a window, and the run order.

The tree consists of flat arrays without an object per node: a million rows take a few dozen
megabytes beside their tokens.

`run_order` changes the order of the walk in two cases. Rows with lower priority numbers run
first. If a run has a deadline, the finished rows should be a fair sample of all rows, so rows
are drawn at random in rounds, and each round is walked as the tree is. More rounds make the
sample fairer at any moment, but a prefix is computed again in each round that has rows of it;
the number of rounds is the largest whose cost is small.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Bools, Int32s, Int64s
from pagedrun.kernels.partition import ON_GPU, ReadOnce
from pagedrun.kernels.token_rows import TreeWalk, sort_rows, walk_tree
from pagedrun.paged.values.request import Request

# With fewer rows the lengths of finished answers predict too little.
MIN_GROUP_ROWS = 16


class TreeNodes(NamedTuple):
    """Every prefix at which rows diverge, [num_nodes] each, in no order.

    parent: int32, node of the next shorter prefix, -1 for none; the node adds the tokens [`start`,
    `end`), int32. row: int64, one of its `num_rows`, int64. num_tokens_saved: int64, tokens that
    its whole blocks save, beyond those of the nodes above.
    """

    parent: Int32s
    start: Int32s
    end: Int32s
    row: Int64s
    num_rows: Int64s
    num_tokens_saved: Int64s

    @classmethod
    def of(cls, walk: TreeWalk, rows: Int64s, block_size: int) -> "TreeNodes":
        """Return the nodes of a walk; `rows` are the numbers of its last len(rows) rows."""
        parent = walk.node_parent[1:] - 1
        end = walk.node_depth[1:]
        start = walk.node_depth[walk.node_parent[1:]]
        num_rows = walk.node_size[1:]
        num_blocks = end // block_size - start // block_size
        begin = len(walk.order) - len(rows)  # the row of the window before, if any
        first = np.maximum(walk.node_first[1:] - begin, 0)
        return cls(
            parent=parent,
            start=start,
            end=end,
            row=rows[first],
            num_rows=num_rows,
            num_tokens_saved=(num_rows - 1) * num_blocks.astype(np.int64) * block_size,
        )


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prefix in common to several rows.

    `row` is one of them; `num_tokens_saved` counts tokens that its whole blocks save, beyond those
    of the shorter prefixes.
    """

    row: int
    num_tokens: int
    num_rows: int
    num_tokens_saved: int

    @classmethod
    def of(cls, nodes: TreeNodes, node: int) -> "SharedPrefix":
        """Return a node of a tree."""
        return cls(
            row=int(nodes.row[node]),
            num_tokens=int(nodes.end[node]),
            num_rows=int(nodes.num_rows[node]),
            num_tokens_saved=int(nodes.num_tokens_saved[node]),
        )


@dataclass(frozen=True)
class PrefixTree:
    """Prompts in run order: depth first, in each group the longest expected answer first.

    Every subtree is walked in one piece, so a row has most in common with its neighbors; `at` gives
    another order.

    order: [num_rows] int64, row numbers. num_tokens: [num_rows] int64, length of each prompt.
    common: [num_rows] int32, tokens in common with the previous prompt; for the first one that is
    the prompt `after` which the tree was built, if any. num_shared_tokens: [num_rows] int32,
    leading tokens of any other row as well. num_read_once_tokens: [num_rows] int32, leading tokens
    of enough rows that reading them together pays, see `ReadOnce`. group: [num_rows] int32, number
    of the smallest subtree with at least MIN_GROUP_ROWS rows. All in run order.
    """

    block_size: int
    order: Int64s
    num_tokens: Int64s
    common: Int32s
    num_shared_tokens: Int32s
    num_read_once_tokens: Int32s
    group: Int32s
    _walk: TreeWalk
    _walked: Int64s  # row numbers in the order of the walk, before rows were removed

    @classmethod
    def build(
        cls,
        tokens: Int32s,
        offsets: Int64s,
        weights: Int64s,
        block_size: int,
        after: Int32s | None = None,
        read_once: ReadOnce = ON_GPU,
    ) -> "PrefixTree":
        """Build the tree of rows `tokens[offsets[i]:offsets[i + 1]]`.

        tokens: [num_tokens] int32. offsets: [num_rows + 1] int64. weights: [num_rows] int64, the
        heavier subtree runs first; a subtree has the weight of its heaviest row. after: the prompt
        that ran last; the walk begins with the rows that have most in common with it. read_once:
        rule for reading a prefix for all its rows together.
        """
        num_rows = len(offsets) - 1
        if after is not None:
            tokens = np.concatenate([tokens, after])
            offsets = np.append(offsets, len(tokens))
            weights = np.append(weights, np.iinfo(np.int64).max)
        order, common = sort_rows(tokens, offsets)
        walk = walk_tree(common, weights[order].astype(np.int64), block_size, MIN_GROUP_ROWS)
        begin = int(after is not None)  # that prompt is the heaviest, so the walk begins with it
        common = walk.common[begin:]
        following = np.append(common[1:], 0).astype(np.int32)
        before = common.copy()
        before[:1] = 0  # sharing is counted among these rows only
        row_order = order[walk.order[begin:]]
        assert len(row_order) == num_rows
        return cls(
            block_size=block_size,
            order=row_order,
            num_tokens=np.diff(offsets)[row_order],
            common=common,
            num_shared_tokens=np.maximum(before, following),
            num_read_once_tokens=_read_once(before, read_once),
            group=walk.group[begin:],
            _walk=walk,
            _walked=row_order,
        )

    def at(self, places: Int64s) -> "PrefixTree":
        """Return some of the rows in another order; the numbers of shared tokens stay.

        places: [num_places] int64, distinct positions in the run order. The tree must be a whole
        walk, where two rows have in common the minimum over all rows in between.
        """
        if np.array_equal(places, np.arange(len(self.order))):
            return self
        common = _least_between(self.common, places)
        return PrefixTree(
            block_size=self.block_size,
            order=self.order[places],
            num_tokens=self.num_tokens[places],
            common=common,
            num_shared_tokens=self.num_shared_tokens[places],
            num_read_once_tokens=self.num_read_once_tokens[places],
            group=self.group[places],
            _walk=self._walk,
            _walked=self._walked,
        )

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def num_hit_blocks(self) -> Int32s:
        """[num_rows] int32, whole blocks that each row finds in a cache without evictions."""
        return self.common // np.int32(self.block_size)

    @cached_property
    def num_keep_blocks(self) -> Int32s:
        """[num_rows] int32, leading blocks of each row that a later one needs."""
        return np.append(self.num_hit_blocks, 0)[1:].astype(np.int32)

    @property
    def num_block_hit_tokens(self) -> int:
        """Prompt tokens that whole cached blocks save; the last token is always computed."""
        hits = self.num_hit_blocks.astype(np.int64) * self.block_size
        return int(np.minimum(hits, self.num_tokens - 1).sum())

    @property
    def num_common_tokens(self) -> int:
        """Prompt tokens that sharing by single tokens, without blocks, would save."""
        return int(np.minimum(self.common, self.num_tokens - 1).sum())

    @property
    def num_distinct_tokens(self) -> int:
        """Tokens of the tree: each prefix counted once."""
        return int((self.num_tokens - self.common).sum())

    @property
    def num_shared_blocks(self) -> int:
        """Distinct blocks that more than one row holds."""
        return int(np.maximum(self.num_keep_blocks - self.num_hit_blocks, 0).sum())

    @property
    def depth(self) -> int:
        """Most nested shared prefixes of a row, at least a block apart."""
        return int(self._walk.level.max(initial=0))

    @property
    def num_groups(self) -> int:
        """Groups of two rows or more that share their first block."""
        alone = self.num_hit_blocks == 0
        return int(np.count_nonzero(alone & (self.num_keep_blocks > 0)))

    def top_prefixes(self, count: int) -> list[SharedPrefix]:
        """Return the prefixes with the largest savings, best first."""
        nodes = self.nodes
        best = np.argsort(-nodes.num_tokens_saved, kind="stable")[:count]
        return [SharedPrefix.of(nodes, node) for node in best if nodes.num_tokens_saved[node] > 0]

    def prefixes_of(self, row: int) -> list[SharedPrefix]:
        """Return the prefixes that a row has in common with others, the shortest first.

        The tree must be whole: built `after` no other prompt, and without removed rows.
        """
        (place,) = np.flatnonzero(self.order == row)
        nodes, first = self.nodes, self._walk.node_first[1:]
        (around,) = np.nonzero((first <= place) & (place < first + nodes.num_rows))
        return [SharedPrefix.of(nodes, node) for node in around[np.argsort(nodes.end[around])]]

    @property
    def nodes(self) -> TreeNodes:
        """Common prefixes of the rows, as a tree."""
        return TreeNodes.of(self._walk, self._walked, self.block_size)


def _least_between(common: Int32s, places: Int64s) -> Int32s:
    """Return the tokens in common with the previous row for rows at other positions of a walk.

    common: [num_rows] int32, those of the walk. places: [num_places] int64, positions in the new
    order; the row before the first one is that before the walk. Returns [num_places] int32.
    """
    least = np.zeros(len(places), dtype=np.int32)
    before = np.concatenate([[-1], places[:-1]])[: len(places)]
    begin, end = np.minimum(before, places) + 1, np.maximum(before, places) + 1
    level = np.frexp(end - begin)[1] - 1  # of the longest power of two that fits in between
    width, runs = 1, common  # the least of each run of `width` rows
    for each in range(int(level.max(initial=-1)) + 1):
        (here,) = np.nonzero(level == each)
        least[here] = np.minimum(runs[begin[here]], runs[end[here] - width])
        runs = np.minimum(runs[:-width], runs[width:])
        width *= 2
    return least


def _read_once(common: Int32s, rule: ReadOnce) -> Int32s:
    """Return the leading tokens of each row that are read together with others, [n] int32."""
    most = np.zeros(len(common), dtype=np.int32)
    for num_rows in rule.row_counts:
        shared = common_to(num_rows, common)
        most = np.maximum(most, np.where(shared >= rule.min_work / num_rows, shared, 0))
    return most


def common_to(num_rows: int, common: Int32s) -> Int32s:
    """Return the leading tokens that each row has in common with `num_rows - 1` others.

    common: [n] int32, tokens in common with the previous row, 0 for the first. Rows that share a
    prefix are adjacent, so the others are next to the row: a run of `num_rows` rows has in common
    the minimum of its members' `common`, and a row is in `num_rows` such runs. Returns [n] int32.
    """
    assert num_rows >= 2
    count = len(common)
    if count < num_rows:
        return np.zeros(count, dtype=np.int32)
    windows = np.lib.stride_tricks.sliding_window_view
    runs = windows(common[1:], num_rows - 1).min(axis=1)  # of the run that begins at each row
    padded = np.pad(runs, num_rows - 1)
    most: Int32s = windows(padded, num_rows).max(axis=1)
    return most


def request_tree(
    requests: Seq[Request],
    block_size: int,
    last: Request | None = None,
    read_once: ReadOnce = ON_GPU,
    weights: Int64s | None = None,
) -> PrefixTree:
    """Return the tree of the prompts of requests; its row numbers are indices of `requests`.

    last: the request that ran before them. read_once: rule for reading a prefix for all its rows
    together. weights: [num_requests] int64, the heavier run first; None for the longest answers.
    """
    lengths = [len(request.prompt_token_ids) for request in requests]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    ids = chain.from_iterable(request.prompt_token_ids for request in requests)
    tokens = np.fromiter(ids, dtype=np.int32, count=int(offsets[-1]))
    if weights is None:
        weights = np.array([each.params.max_num_drawn for each in requests], dtype=np.int64)
    after = None if last is None else np.array(last.prompt_token_ids, dtype=np.int32)
    return PrefixTree.build(tokens, offsets, weights, block_size, after, read_once)


# Cost limit of rounds, as a share of the cost of all rows: a new token takes about as long as 8
# of a prompt, and most answers are no longer than the usual one, whatever their limit.
MAX_EXTRA_SHARE = 0.25
PROMPT_TOKENS_A_NEW_ONE = 8
USUAL_ANSWER = 64
_RANGE = 2**62


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """Random number of each row of a window: `values`, [num_rows] int64; the highest run first.

    Rows keep theirs when the run is resumed, whatever is left of the file by then.
    """

    values: Int64s

    @classmethod
    def of(cls, requests: Seq[Request], seed: int) -> "RandomOrder":
        """Draw the numbers of requests in the order of their index."""
        indices = np.fromiter((each.index for each in requests), np.int64, len(requests))
        if not len(indices):
            return cls(indices)
        first, last = int(indices[0]), int(indices[-1])
        drawn = np.random.default_rng([seed, first]).integers(0, _RANGE, last - first + 1)
        return cls(drawn[indices - first])

    def rounds(self, num_rounds: int) -> Int64s:
        """Return the round of each row, [num_rows] int64, from 0."""
        return (_RANGE - 1 - self.values) // max(_RANGE // num_rounds, 1)


def run_order(
    tree: PrefixTree,
    kept: Bools,
    priorities: Int64s,
    draws: RandomOrder | None,
    max_new_tokens: Int64s,
) -> PrefixTree:
    """Return the tree with the rows to run, in run order.

    kept: [num_rows] bool, rows to run, in walking order. priorities: [num_rows] int64, by row
    number. draws: by row number; None for an order that is not random. max_new_tokens: [num_rows]
    int64, limit of each answer, by row number.
    """
    (places,) = np.nonzero(kept)
    by_row = tree.order[places]
    priority = priorities[by_row]
    if draws is None:
        return tree.at(places[np.argsort(priority, kind="stable")])
    walked = tree.at(places)
    answers = int(np.minimum(max_new_tokens[by_row], USUAL_ANSWER).sum())
    work = walked.num_distinct_tokens + PROMPT_TOKENS_A_NEW_ONE * answers
    num_rounds = 1 << max(len(places) - 1, 1).bit_length()
    while num_rounds > 1:
        order = np.lexsort((draws.rounds(num_rounds)[by_row], priority))
        ordered = tree.at(places[order])
        if ordered.num_distinct_tokens - walked.num_distinct_tokens <= MAX_EXTRA_SHARE * work:
            return ordered
        num_rounds //= 2
    return tree.at(places[np.argsort(priority, kind="stable")])
