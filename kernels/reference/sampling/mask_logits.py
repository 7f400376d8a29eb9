"""What a grammar forbids, taken out of the logits."""

import torch
from torch import Tensor


def mask_logits(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
    """Write -inf where a row's bitmask does not allow a token; nothing else is written.

    logits: [num_rows, vocab_size], contiguous. rows: [num_masked] int64, the rows that have a
    bitmask, each at most once. bitmask: [num_masked, ceil(vocab_size / 32)] int32: bit i of word w
    allows token 32 w + i. Bits past the vocabulary are not looked at.
    """
    places = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (bitmask.unsqueeze(2) >> places & 1).flatten(1)[:, : logits.shape[1]] == 1
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)
