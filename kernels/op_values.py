"""Values that operations take and return: expert routing, recurrent states, log-probabilities."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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


@dataclass(frozen=True, slots=True)
class StateInputs:
    """Chunks of consecutive tokens, each of one sequence, and where its state is read and written.

    tokens: [num_tokens] int32, the batch's tokens chunk by chunk in each sequence's order: the
    batch itself holds all prompt tokens before all generated ones, and a chunk may have both.
    chunk_starts: [num_chunks + 1] int32, offsets into `tokens`. read_slots: [num_chunks] int32, the
    state that a chunk goes on from, -1 for zeros. write_slots: [num_chunks] int32, where the state
    behind its last token goes, -1 for nowhere; it may be the slot that was read, but none that
    another chunk reads or writes.
    """

    tokens: Tensor
    chunk_starts: Tensor
    read_slots: Tensor
    write_slots: Tensor

    def chunks(self) -> tuple[Tensor, ...]:
        """Return the tokens of each chunk, in their order."""
        starts = self.chunk_starts.tolist()
        return torch.split(self.tokens.long(), [b - a for a, b in pairwise(starts)])

    def placed(self, place: Callable[[Tensor], Tensor]) -> "StateInputs":
        """Return the same on a device, as `place` puts tensors there."""
        return StateInputs(
            place(self.tokens),
            place(self.chunk_starts),
            place(self.read_slots),
            place(self.write_slots),
        )


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
