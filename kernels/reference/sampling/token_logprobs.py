"""Log-probabilities of tokens, and the tokens that were likeliest instead."""

import torch
from torch import Tensor

from pagedrun.kernels.token_logprobs import TokenLogprobs


def token_logprobs(logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
    """Return how likely tokens are by softmax over their row of logits.

    logits: [num_rows, vocab_size] float32 or bfloat16. rows: [num_tokens] int64, the row of logits
    that each token is chosen by. ids: [num_tokens] int64, the tokens. num_top: at most vocab_size.
    A token's result depends on its row of logits alone. Where that holds a NaN, or nothing finite,
    the log-probabilities are NaN and the rest is any number.
    """
    x = logits[rows].to(torch.promote_types(logits.dtype, torch.float32))
    chosen = x.gather(1, ids.unsqueeze(1))
    log_sum = x.double().logsumexp(1, keepdim=True)
    top_ids = x.argsort(dim=1, descending=True, stable=True)[:, :num_top]
    return TokenLogprobs(
        logprobs=(chosen - log_sum).squeeze(1).to(x.dtype),
        ranks=(x >= chosen).sum(1),
        top_ids=top_ids,
        top_logprobs=(x.gather(1, top_ids) - log_sum).to(x.dtype),
    )
