"""Counting of tokens in tables of the distinct ones."""

import torch
from torch import Tensor


def count_tokens(
    token_ids: Tensor, counts: Tensor, num_ids: Tensor, places: Tensor, tokens: Tensor
) -> None:
    """Count one more of each of `tokens` in the line of a table that `places` says, in place.

    token_ids, counts: [num_lines, width] int32; in a line the distinct ids and how often each was
    counted, behind them anything. num_ids: [num_lines] int32, how many there are. places:
    [num_tokens] int64, no line twice, none of them full. tokens: [num_tokens] int64.
    """
    is_used = torch.arange(token_ids.shape[1], device=places.device) < num_ids[places].unsqueeze(1)
    is_same = (token_ids[places] == tokens.unsqueeze(1)) & is_used
    is_new = ~is_same.any(1)
    columns = torch.where(is_new, num_ids[places].long(), is_same.int().argmax(1))
    token_ids[places, columns] = tokens.to(token_ids.dtype)
    counts[places, columns] = torch.where(is_new, 1, counts[places, columns] + 1)
    num_ids[places] += is_new
