"""BeamSearch: chooses the beams of a request that continue after a step, and those that end.

The choices are those of Transformers' `generate(num_beams=...)`, in float32 as there. They
follow from the most likely tokens of each beam alone, and not from other requests.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Float32s, Int32s, Int64s
from pagedrun.paged.values.sampling_params import EarlyStopping, SamplingParams


class FinishedBeam(NamedTuple):
    """The tokens of an answer, the one that stopped it included. `score` is the sum of their
    log-probabilities, divided by their number to the power of `length_penalty`."""

    token_ids: tuple[int, ...]
    score: float


class NextBeam(NamedTuple):
    """A beam of the next step: one of this step's, by its place, and the token behind it."""

    parent: int
    token_id: int


class BeamSearch:
    """The scores of the beams that run, best first, and the best of those that are finished.

    stop_token_ids: what ends a beam once it has `min_tokens`.
    """

    def __init__(self, params: SamplingParams, stop_token_ids: Collection[int]) -> None:
        self._params = params
        self._stop_token_ids: Int64s = np.array(sorted(stop_token_ids), dtype=np.int64)
        self._scores: Float32s = np.zeros(1, dtype=np.float32)
        self._num_tokens = 0
        self._finished: list[FinishedBeam] = []

    @property
    def finished(self) -> list[FinishedBeam]:
        """The best finished beams, best first, at most `beam_width`."""
        return list(self._finished)

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens of each running beam."""
        return self._num_tokens

    def advance(self, tokens: Int32s, top_ids: Int64s, top_scores: Float32s) -> list[NextBeam]:
        """Take a step; return the beams that go on, best first, none if the search is over.

        tokens: [num_beams, num_tokens] int32, what those that run have generated, in the order of
        the last call's. top_ids, top_scores: [num_beams, num_top], the likeliest next tokens of
        each with their log-probabilities. `num_candidates` says how many are needed.
        """
        width = self._params.beam_width
        self._num_tokens += 1
        parents, ids, scores = self._candidates(top_ids, top_scores)
        is_last = self._num_tokens == self._params.max_tokens
        goes_on = ~(np.isin(ids, self._stop_token_ids) | is_last)
        (going,) = np.nonzero(goes_on)
        going = going[:width]
        # What comes behind the first is there only in the place of those that end.
        for rank in np.flatnonzero(~goes_on[:width]).tolist():
            answer = (*tokens[parents[rank]].tolist(), int(ids[rank]))
            score = self._scored(scores[rank], self._num_tokens)
            self._finished.append(FinishedBeam(answer, score))
        self._finished = sorted(self._finished, key=lambda each: -each.score)[:width]
        self._scores = scores[going]
        if not len(going) or not self._may_improve():
            return []
        return list(map(NextBeam, parents[going].tolist(), ids[going].tolist()))

    def _candidates(self, top_ids: Int64s, top_scores: Float32s) -> tuple[Int64s, Int64s, Float32s]:
        """Return all continuations, best first: the beam, the token behind it, and their score; of
        equal ones the better beam's, then the one with the likelier token."""
        sums = (self._scores[:, None] + top_scores).astype(np.float32)
        if self._num_tokens <= self._params.min_tokens:
            sums[np.isin(top_ids, self._stop_token_ids)] = -np.inf
        scores = sums.ravel()
        order = np.argsort(-scores, kind="stable")
        order = order[scores[order] > -np.inf]
        return order // top_ids.shape[1], top_ids.ravel()[order], scores[order]

    def _may_improve(self) -> bool:
        """Return whether a beam that runs may still take the place of one that is finished."""
        params = self._params
        if len(self._finished) < params.beam_width:
            return True
        if params.early_stopping is EarlyStopping.TRUE:
            return False
        length = self._num_tokens
        if params.early_stopping is EarlyStopping.NEVER and params.length_penalty > 0:
            length = params.max_tokens
        return self._scored(self._scores[0], length) > self._finished[-1].score

    def _scored(self, score: np.float32, length: int) -> float:
        return float(score / np.float32(length**self._params.length_penalty))


def num_candidates(beam_width: int, num_stops: int) -> int:
    """Return how many of the likeliest tokens behind each beam decide a step: all that can be among
    the first `beam_width`, whether they stop a beam or not, and as many that do not."""
    return beam_width + num_stops
