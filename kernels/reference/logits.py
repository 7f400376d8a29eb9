"""Operations on logits: penalties and log-probabilities."""

import torch
from torch import Tensor

from pagedrun.kernels.op_values import TokenLogprobs


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
