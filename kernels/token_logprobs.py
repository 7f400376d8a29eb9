"""TokenLogprobs: how likely tokens are, as the op `token_logprobs` returns it."""

from typing import NamedTuple

from torch import Tensor


class TokenLogprobs(NamedTuple):
    """Of some tokens, each behind a row of logits: all natural logarithms, rank 1 the likeliest.

    logprobs: [num_tokens] float32. ranks: [num_tokens] int64, how many tokens are at least as
    likely. top_ids: [num_tokens, num_top] int64, the likeliest tokens, the lowest id first on
    ties; top_logprobs: [num_tokens, num_top] float32.
    """

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
