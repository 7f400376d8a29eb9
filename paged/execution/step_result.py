"""StepResult: what a step has computed, on the device."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.token_logprobs import TokenLogprobs
from pagedrun.paged.scheduling.sequence_table import Int64s


class StepResult(NamedTuple):
    """ids: int64, the tokens drawn, `NO_TOKEN` where there was no choice. logprobs: of the draws
    that want them. scores: of the step's targets. Both are None where there are none. order:
    [num_draws] int64, which of `ids` each draw's is, None: they are in order.
    """

    ids: Tensor
    logprobs: TokenLogprobs | None = None
    scores: TokenLogprobs | None = None
    order: Int64s | None = None

    def followed_by(self, other: "StepResult") -> "StepResult":
        """Return the result of a step that was computed in two pieces."""
        orders = [
            np.arange(len(each.ids)) if each.order is None else each.order for each in (self, other)
        ]
        is_plain = self.order is None and other.order is None
        return StepResult(
            torch.cat([self.ids, other.ids]),
            joined([self.logprobs, other.logprobs]),
            joined([self.scores, other.scores]),
            None if is_plain else np.concatenate([orders[0], orders[1] + len(self.ids)]),
        )


def joined(parts: list[TokenLogprobs | None]) -> TokenLogprobs | None:
    """Return the tokens of all parts as one, None if there is none."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    return TokenLogprobs(*map(torch.cat, zip(*found, strict=True)))
