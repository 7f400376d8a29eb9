"""Terms of scores by the distance of query and key; see `RelativeTerms`.

The terms of a block of 32 rows and the tokens of a partition are read from two tables: that of a
row's own token, and that of each key. Tokens come one after the other with the rows inside, so that
neighboring rows read neighboring columns of a key, and each row stays near its column before.
"""

from typing import Any

from pagedrun.kernels.cpu.attention.inputs import BLOCK_ROWS
from pagedrun.kernels.cpu.bfloat16 import to_float32
from pagedrun.kernels.cpu.jit import inlined

_LANES = 16
_IN_QUERIES, _IN_KEYS, _POSITION = range(3)


@inlined()
def find_rows(
    rows: Any,
    first: Any,
    num_rows: Any,
    head: Any,
    group: Any,
    begin: Any,
    strides: Any,
    found: Any,
) -> None:
    """Write facts of the rows `first` to `first + 31` to `found` [3, 32].

    They are the places of a row in `by_query` and of its head in `by_key`, and its position. rows:
    the tile's tokens, each with `group` rows. begin: first token of the text. strides: see
    `Relative`.
    """
    for i in range(min(BLOCK_ROWS, num_rows - first)):
        token, q_head = rows[(first + i) // group], head * group + (first + i) % group
        found[_IN_QUERIES, i] = token * strides[0, 0] + q_head * strides[0, 1]
        found[_IN_KEYS, i] = begin * strides[1, 0] + q_head * strides[1, 1]
        found[_POSITION, i] = token - begin


@inlined()
def add_terms(
    scores: Any,
    half: Any,
    num_rows: Any,
    found: Any,
    start: Any,
    num_tokens: Any,
    relative: Any,
) -> None:
    """Add the terms to the scores [partition * 32] of one half of a block.

    num_rows: rows of the block. found: see `find_rows`. start: first position of the partition;
    num_tokens: of the partition. relative: `Relative`.
    """
    by_query, by_key, strides, columns = relative
    in_queries, in_keys, positions = found[_IN_QUERIES], found[_IN_KEYS], found[_POSITION]
    last, key_stride = min(half + _LANES, num_rows), strides[1, 0]
    for token in range(num_tokens):
        place, away = token * BLOCK_ROWS, columns.shape[0] // 2 - start - token
        if by_query.shape[0] > 0:
            for i in range(half, last):
                number = by_query[in_queries[i] + columns[positions[i] + away]]
                scores[place + i] += to_float32(number)
        if by_key.shape[0] > 0:
            key = (start + token) * key_stride
            for i in range(half, last):
                number = by_key[in_keys[i] + key + columns[positions[i] + away]]
                scores[place + i] += to_float32(number)
