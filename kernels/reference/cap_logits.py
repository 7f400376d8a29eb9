"""The cap of Gemma's logits."""

import torch
from torch import Tensor


def cap_logits(logits: Tensor, cap: float) -> None:
    """Bend logits into -cap .. cap, in place: `cap * tanh(logits / cap)`, rounded once.

    logits: [num_rows, vocab_size], any float dtype.
    Source: Gemma Team 2024, "Gemma 2", arXiv:2408.00118, section 2.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits.copy_(cap * torch.tanh(wide / cap))
