"""Whether what a model computes of a token depends, in its last bits, on what is computed beside.

The products and the attention do not, but a library's code is free to use any other op of torch,
and some of these take another path for what is left over at the end of a loop. That is not written
anywhere, so it is tried: what differs proves that it does, what agrees only makes it unlikely.
"""

from itertools import pairwise

import torch
from torch import Tensor

from pagedrun.paged.models.library.trial import NUM_ROWS, Chunk, Trial

_PROMPT = 17
_TOGETHER = (3, NUM_ROWS)
_CUTS = (0, 5, 18)


def rows_depend_on_batch(trial: Trial) -> bool:
    """Whether a token was seen to get other bits with other rows, or in other chunks."""
    return not (_prompts_agree(trial) and _chunks_agree(trial) and _generated_agree(trial))


def _prompts_agree(trial: Trial) -> bool:
    alone = [trial.hidden([Chunk(row, 0, _PROMPT)])[0] for row in range(NUM_ROWS)]
    return all(
        _same(trial.hidden([Chunk(row, 0, _PROMPT) for row in _rows(num)]), alone)
        for num in _TOGETHER
    )


def _generated_agree(trial: Trial) -> bool:
    """Compare the token behind the prompts, which are in the cache."""
    at = _PROMPT, _PROMPT + 1
    alone = [trial.hidden([Chunk(row, *at, is_prompt=False)])[0] for row in range(NUM_ROWS)]
    return all(
        _same(trial.hidden([Chunk(row, *at, is_prompt=False) for row in _rows(num)]), alone)
        for num in _TOGETHER
    )


def _chunks_agree(trial: Trial) -> bool:
    end = trial.long_tokens
    [whole] = trial.hidden([Chunk(0, 0, end)])
    borders = [*_CUTS, max(end - 9, _CUTS[-1] + 1), end]
    pairs = pairwise(borders)
    pieces = [trial.hidden([Chunk(0, start, stop)])[0] for start, stop in pairs]
    return torch.equal(torch.cat(pieces), whole)


def _rows(num_rows: int) -> range:
    """Return the first rows, last first: each at another place than alone."""
    return range(num_rows - 1, -1, -1)


def _same(together: list[Tensor], alone: list[Tensor]) -> bool:
    pairs = zip(reversed(together), alone, strict=False)  # of those that were not there, none
    return all(torch.equal(one, other) for one, other in pairs)
