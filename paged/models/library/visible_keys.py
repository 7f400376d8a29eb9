"""The window that a mask of the library leaves open."""

from collections.abc import Callable

import torch
from torch import Tensor

# (row, head, position of the query, position of the key) -> whether it is seen; they broadcast.
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
MAX_LOOKED_AT = 2**17  # keys of one query


def window_of(is_visible: MaskFunction, num_positions: int) -> int | None:
    """Return the sliding window of a mask, None if each query sees all keys up to its own.

    The last of `num_positions` queries says how wide it is; a few others must agree. Raises
    `ValueError` for a mask that is neither.
    """
    num_keys = min(num_positions, MAX_LOOKED_AT)
    width = int(_seen(is_visible, num_keys - 1, num_keys).sum())
    keys = torch.arange(num_keys)
    borders = (0, 1, width - 1, width, width + 1, num_keys // 2, num_keys - 1)
    for query in sorted({each for each in borders if 0 <= each < num_keys}):
        expected = (keys <= query) & (keys > query - width)
        if not torch.equal(_seen(is_visible, query, num_keys), expected):
            raise ValueError(
                f"the query at position {query} does not see exactly the keys before it"
            )
    return None if width == num_keys else width


def _seen(is_visible: MaskFunction, query: int, num_keys: int) -> Tensor:
    zero = torch.tensor(0)
    return is_visible(zero, zero, torch.tensor(query), torch.arange(num_keys)).expand(num_keys)
