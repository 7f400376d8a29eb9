"""StepResult: what a step has computed, on the device."""

from typing import NamedTuple

import torch
from torch import Tensor

from pagedrun.kernels.token_logprobs import TokenLogprobs


class StepResult(NamedTuple):
    """ids: [num_draws] int64, the tokens drawn, `NO_TOKEN` where there was no choice. logprobs: of
    the draws that want them. scores: of the step's targets. Both are None where there are none.
    """

    ids: Tensor
    logprobs: TokenLogprobs | None = None
    scores: TokenLogprobs | None = None

    def followed_by(self, other: "StepResult") -> "StepResult":
        """Return the result of a step that was computed in two pieces."""
        return StepResult(
            torch.cat([self.ids, other.ids]),
            joined([self.logprobs, other.logprobs]),
            joined([self.scores, other.scores]),
        )


def joined(parts: list[TokenLogprobs | None]) -> TokenLogprobs | None:
    """Return the tokens of all parts as one, None if there is none."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    return TokenLogprobs(*map(torch.cat, zip(*found, strict=True)))
