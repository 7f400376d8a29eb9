"""PackedRequests: requests that are sent elsewhere, each shared token once.

Neighbours in a plan begin alike: of each prompt only what the one before it does not have is sent.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling.sampling_params import SamplingParams

_others = attrgetter("bad_words_ids", "continuations", "priority")
_USUAL = _others(Request(0, (), SamplingParams()))


@dataclass(frozen=True, slots=True, eq=False)
class PackedRequests:
    """Requests without their prompts, in columns, and these.

    indices: [num_requests] int64. params: of each. others: its fields behind these, () where they
    are the usual ones. common: [num_requests] int32, how many tokens of the prompt before it each
    begins with. own: [num_tokens] int32, the other tokens of all, one after the other. num_own:
    [num_requests] int64.
    """

    indices: NDArray[np.int64]
    params: tuple[SamplingParams, ...]
    others: tuple[tuple[Any, ...], ...]
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
        others = map(_others, requests)
        return cls(
            np.array([request.index for request in requests], dtype=np.int64),
            tuple(request.params for request in requests),
            tuple(() if each == _USUAL else each for each in others),
            taken,
            np.array([token for tokens in own for token in tokens], dtype=np.int32),
            np.array([len(tokens) for tokens in own], dtype=np.int64),
        )

    def requests(self) -> tuple[Request, ...]:
        """Return the requests as they were."""
        tokens, found = self.own.tolist(), []
        prompt: tuple[int, ...] = ()
        end = 0
        columns = zip(
            self.indices.tolist(),
            self.params,
            self.others,
            self.common.tolist(),
            self.num_own.tolist(),
            strict=True,
        )
        for index, params, others, num_common, num_own in columns:
            begin, end = end, end + num_own
            prompt = (*prompt[:num_common], *tokens[begin:end])
            found.append(Request(index, prompt, params, *others))
        return tuple(found)
