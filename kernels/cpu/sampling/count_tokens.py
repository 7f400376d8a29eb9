"""Counting of tokens in tables of the distinct ones."""

from typing import Any

import numba
from torch import Tensor

from pagedrun.kernels.cpu.bfloat16 import as_array
from pagedrun.kernels.cpu.jit import kernel, spread


def count_tokens(
    token_ids: Tensor, counts: Tensor, num_ids: Tensor, places: Tensor, tokens: Tensor
) -> None:
    """Count one more of each of `tokens` in the line of its place; see the reference."""
    spread(len(tokens) * token_ids.shape[1])
    _count_tokens(*map(as_array, (token_ids, counts, num_ids, places, tokens)))


@kernel
def _count_tokens(token_ids: Any, counts: Any, num_ids: Any, places: Any, tokens: Any) -> None:
    for i in numba.prange(places.shape[0]):
        place, token = places[i], tokens[i]
        line, num_used, column = token_ids[place], num_ids[place], 0
        while column < num_used and line[column] != token:
            column += 1
        if column == num_used:
            line[column] = token
            counts[place, column] = 0
            num_ids[place] = num_used + 1
        counts[place, column] += 1
