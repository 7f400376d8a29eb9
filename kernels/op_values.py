"""Values that operations take and return: expert routing, recurrent states, log-probabilities."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of each token, best first.

    experts: [num_tokens, num_chosen] int64, all different in a row. weights: the same shape,
    float32 (float64 where logits were), the factor of each expert's result.
    """

    experts: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Rows of a step in the order of their experts.

    A token has a row for each of its experts. Expert e computes rows `starts[e] ..
    starts[e + 1] - 1`; row i is of token `tokens[i]`; `rows[t, r]` is where token t's expert of
    rank r computes it. An expert's rows are in the order of their tokens.

    starts: [num_experts + 1] int64. tokens: [num_rows] int64. rows: [num_tokens, num_chosen] int64.
    """

    starts: Tensor
    tokens: Tensor
    rows: Tensor

    @classmethod
    def of(cls, experts: Tensor, num_experts: int) -> "ExpertRows":
        """Sort the rows of a routing's `experts` on the device, without synchronization."""
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
    """Chunks of consecutive tokens, each of one sequence, and the slots of their states.

    tokens: [num_tokens] int32, the batch's tokens chunk by chunk in each sequence's order: the
    batch itself has all prompt tokens before all generated ones, and a chunk may have both.
    chunk_starts: [num_chunks + 1] int32, offsets into `tokens`. read_slots: [num_chunks] int32, the
    slot of a chunk's initial state, -1 for zeros. write_slots: [num_tokens] int32, the slot of the
    state after each of `tokens`, -1 for none. Those of a chunk are of its last tokens: usually one,
    and each draft has its own. The first of them may be the chunk's read slot; none is a slot of
    another chunk.
    """

    tokens: Tensor
    chunk_starts: Tensor
    read_slots: Tensor
    write_slots: Tensor

    def chunks(self) -> tuple[Tensor, ...]:
        """Return the tokens of each chunk, in their order."""
        return self._by_chunk(self.tokens.long())

    def writes(self) -> tuple[Tensor, ...]:
        """Return the slots of the states after the tokens of each chunk."""
        return self._by_chunk(self.write_slots)

    def _by_chunk(self, of_tokens: Tensor) -> tuple[Tensor, ...]:
        starts = self.chunk_starts.tolist()
        return torch.split(of_tokens, [b - a for a, b in pairwise(starts)])

    def placed(self, place: Callable[[Tensor], Tensor]) -> "StateInputs":
        """Return the same on a device, as `place` puts tensors there."""
        return StateInputs(
            place(self.tokens),
            place(self.chunk_starts),
            place(self.read_slots),
            place(self.write_slots),
        )


class TokenLogprobs(NamedTuple):
    """Natural logarithms and ranks of tokens, each for a row of logits; rank 1 is the likeliest.

    logprobs: [num_tokens] float32. ranks: [num_tokens] int64, how many tokens are at least as
    likely. top_ids: [num_tokens, num_top] int64, the likeliest tokens, the lowest id first on
    ties; top_logprobs: [num_tokens, num_top] float32.
    """

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
