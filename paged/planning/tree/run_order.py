"""RunOrder: in which order the rows of a window run, where that is not the walk of their tree.

Rows of lower priority numbers run first. And where a run will be ended before it is through, the
rows that it comes to should be like those that it does not: they are drawn, in rounds. Each round
is a random share of all rows, walked as the tree is. The more rounds there are, the fairer are the
rows done at any moment; but a prefix is computed again in each round that has rows of it, so there
are as many as cost little.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.planning.tree.prefix_tree import Int64s, PrefixTree
from pagedrun.paged.values.request import Request

# What rounds may cost, as a share of what all rows take: a new token takes about as long as so many
# of a prompt, and most answers are no longer than the usual one, however long they may be.
MAX_EXTRA_SHARE = 0.25
PROMPT_TOKENS_A_NEW_ONE = 8
USUAL_ANSWER = 64
_RANGE = 2**62


@dataclass(frozen=True, slots=True)
class Draws:
    """A random number for each row of a window: `values`, [num_rows] int64; the highest run first.

    Rows keep theirs when the run is resumed, whatever is left of the file by then.
    """

    values: Int64s

    @classmethod
    def of(cls, requests: Seq[Request], seed: int) -> "Draws":
        """Draw for requests in the order of their index."""
        indices = np.fromiter((each.index for each in requests), np.int64, len(requests))
        if not len(indices):
            return cls(indices)
        first, last = int(indices[0]), int(indices[-1])
        drawn = np.random.default_rng([seed, first]).integers(0, _RANGE, last - first + 1)
        return cls(drawn[indices - first])

    def rounds(self, num_rounds: int) -> Int64s:
        """Return the round of each row, [num_rows] int64, from 0 on."""
        return (_RANGE - 1 - self.values) // max(_RANGE // num_rounds, 1)


def run_order(
    tree: PrefixTree,
    kept: NDArray[np.bool_],
    priorities: Int64s,
    draws: Draws | None,
    max_new_tokens: Int64s,
) -> PrefixTree:
    """Return the tree with the rows that run in the order in which they do.

    kept: [num_rows] bool, which of them run, in walking order. priorities: [num_rows] int64, by
    number of the row. draws: by number of the row; None for rows that are not to be drawn.
    max_new_tokens: [num_rows] int64, those that its answer has at most, by number of the row.
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
