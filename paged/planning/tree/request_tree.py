"""The prefix tree of requests."""

from collections.abc import Sequence as Seq
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pagedrun.kernels.attention.read_once import ON_GPU, ReadOnce
from pagedrun.paged.planning.tree.prefix_tree import PrefixTree
from pagedrun.paged.values.request import Request


def request_tree(
    requests: Seq[Request],
    block_size: int,
    last: Request | None = None,
    read_once: ReadOnce = ON_GPU,
    weights: NDArray[np.int64] | None = None,
) -> PrefixTree:
    """Return the tree of their prompts; its row numbers are their places in `requests`.

    last: the one that ran before them. read_once: when a prefix is read for all its rows together.
    weights: [num_requests] int64, the heavier run first; None for the longest answers.
    """
    lengths = [len(request.prompt_token_ids) for request in requests]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    ids = chain.from_iterable(request.prompt_token_ids for request in requests)
    tokens = np.fromiter(ids, dtype=np.int32, count=int(offsets[-1]))
    if weights is None:
        weights = np.array([each.params.max_num_drawn for each in requests], dtype=np.int64)
    after = None if last is None else np.array(last.prompt_token_ids, dtype=np.int32)
    return PrefixTree.build(tokens, offsets, weights, block_size, after, read_once)
