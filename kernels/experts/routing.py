"""Routing: which experts a token passes, and the rows of a step sorted by expert."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts that each token passes, best first.

    experts: [num_tokens, num_chosen] int64, all different in a row. weights: the same shape,
    float32 (float64 where logits were), what each expert's result is multiplied by.
    """

    experts: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """The rows of a step in the order of the experts that compute them.

    A token has a row for each expert that it passes. Expert e computes rows `starts[e] ..
    starts[e + 1] - 1`; row i is of token `tokens[i]`; `rows[t, r]` is where token t's expert of
    rank r computes it. An expert's rows are in the order of their tokens.

    starts: [num_experts + 1] int64. tokens: [num_rows] int64. rows: [num_tokens, num_chosen] int64.
    """

    starts: Tensor
    tokens: Tensor
    rows: Tensor

    @classmethod
    def of(cls, experts: Tensor, num_experts: int) -> "ExpertRows":
        """Sort the rows of a routing's `experts`, all on the device: nothing waits for it."""
        num_chosen = experts.shape[1]
        by_expert, order = torch.sort(experts.flatten(), stable=True)
        borders = torch.arange(num_experts + 1, device=experts.device)
        rows = torch.empty_like(order)
        rows[order] = torch.arange(len(order), device=experts.device)
        return cls(
            starts=torch.searchsorted(by_expert, borders),
            tokens=order // num_chosen,
            rows=rows.view(-1, num_chosen),
        )
