"""Penalties on tokens that were there before."""

import torch
from torch import Tensor


def penalize(
    logits: Tensor,
    rows: Tensor,
    places: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    num_ids: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Lower, or raise, the logits of the tokens in a table, in place.

    A logit above 0 is divided by the line's `repetition`, another multiplied by it. Then
    `frequency` times the token's count is taken from it, then `presence` if the count is not 0.
    Each of these is rounded to float32.

    logits: [num_rows, vocab_size] float32. rows, places: [num_penalized] int64, rows of logits,
    each at most once, and the line of the table that is for each. token_ids, counts, num_ids: the
    table, see `count_tokens`. repetition, presence, frequency: [num_lines] float32.
    """
    num_used = num_ids[places].unsqueeze(1)
    is_used = torch.arange(token_ids.shape[1], device=places.device) < num_used
    # Behind a line's ids the first one is looked at again, and comes to the same.
    ids = torch.where(is_used, token_ids[places], token_ids[places, :1]).long().clamp(min=0)
    count = torch.where(is_used, counts[places], counts[places, :1])
    row, factor = rows.unsqueeze(1), repetition[places].unsqueeze(1)
    before = logits[row, ids]
    after = torch.where(before > 0, before / factor, before * factor)
    after = after - frequency[places].unsqueeze(1) * count
    after = after - presence[places].unsqueeze(1) * (count > 0)
    logits[row, ids] = torch.where(num_used > 0, after, before)
