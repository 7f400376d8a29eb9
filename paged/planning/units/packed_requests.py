"""PackedRequests: requests that are sent elsewhere, each shared token once.

Neighbours in a plan begin alike: of each prompt only what the one before it does not have is sent.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class PackedRequests:
    """Requests without their prompts, and these.

    common: [num_requests] int32, how many tokens of the prompt before it each begins with. own:
    [num_tokens] int32, the other tokens of all, one after the other. num_own: [num_requests] int64.
    """

    bare: tuple[Request, ...]
    common: NDArray[np.int32]
    own: NDArray[np.int32]
    num_own: NDArray[np.int64]

    @classmethod
    def of(cls, requests: Seq[Request], common: NDArray[np.int32]) -> "PackedRequests":
        """Pack them; `common` may say too little, but for the first nothing of it is taken."""
        taken = common.copy()
        taken[:1] = 0
        own = [
            request.prompt_token_ids[count:]
            for request, count in zip(requests, taken.tolist(), strict=True)
        ]
        return cls(
            tuple(replace(request, prompt_token_ids=()) for request in requests),
            taken,
            np.array([token for tokens in own for token in tokens], dtype=np.int32),
            np.array([len(tokens) for tokens in own], dtype=np.int64),
        )

    def requests(self) -> tuple[Request, ...]:
        """Return the requests as they were."""
        tokens, found = self.own.tolist(), []
        prompt: tuple[int, ...] = ()
        end = 0
        counts = zip(self.bare, self.common.tolist(), self.num_own.tolist(), strict=True)
        for request, num_common, num_own in counts:
            begin, end = end, end + num_own
            prompt = (*prompt[:num_common], *tokens[begin:end])
            found.append(replace(request, prompt_token_ids=prompt))
        return tuple(found)
