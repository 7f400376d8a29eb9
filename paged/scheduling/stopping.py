"""When a sequence ends, and what its text is then."""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.scheduling.beams.beam_search import FinishedBeam
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import Int64s, SequenceTable
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import FinishReason, SampleOutput
from pagedrun.paged.values.sampling import SamplingParams


class StopRule:
    """Decides after each known token whether a sequence is finished.

    In this order: an end-of-sequence token (unless `ignore_eos`) or one of `stop_token_ids`, a
    stop string, the end of a structure behind which nothing may follow, then `max_tokens`. Nothing
    but the last two ends a sequence before `min_tokens`, and a stop string counts only if it ends
    behind the first `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Seq[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._eos_array = np.array(sorted(self._eos_token_ids), dtype=np.int64)

    def may_end(
        self, table: SequenceTable, places: Int64s, num_known: Int64s, tokens: Int64s
    ) -> NDArray[np.bool_]:
        """Return which sequences `output` has to look at, [num_places] bool: others go on.

        num_known: how many generated tokens of each are known. tokens: the last of them.
        """
        may_stop = num_known >= table.min_tokens[places]
        is_eos = (tokens[:, None] == self._eos_array).any(axis=1) & ~table.ignores_eos[places]
        at_limit = num_known >= table.max_tokens[places]
        ends: NDArray[np.bool_] = at_limit | (may_stop & (is_eos | table.has_stops[places]))
        return ends

    def output(self, sequence: Sequence, *, is_complete: bool = False) -> SampleOutput | None:
        """Return the finished sample, or `None` while the sequence has to go on.

        is_complete: whether it has a structure behind which nothing may follow.
        The token that stopped it is kept in `token_ids` but not in the text; a stop string and
        what follows it are cut from the text. `stop_reason` is the stop token or string, `None`
        for an end-of-sequence token. Tokens that are given, or dropped, are no answer.
        """
        params = sequence.request.params
        if sequence.only_scores:
            return SampleOutput(sequence.sample_index, "", (), FinishReason.LENGTH)
        ids = sequence.known_output_token_ids
        may_stop = len(ids) >= params.min_tokens
        if may_stop and ids[-1] in params.stop_token_ids:
            return self._finish(sequence, ids[:-1], FinishReason.STOP, ids[-1])
        if may_stop and not params.ignore_eos and ids[-1] in self._eos_token_ids:
            return self._finish(sequence, ids[:-1], FinishReason.STOP, None)
        if may_stop and params.stop and self._may_hold_stop(ids, params.stop):
            text = self._tokenizer.decode(ids)
            # What ends within the first `min_tokens` tokens does not count, then or later.
            early = len(self._tokenizer.decode(ids[: params.min_tokens]))
            places = [(text.find(s, max(0, early - len(s) + 1)), s) for s in params.stop]
            found = [(place, stop) for place, stop in places if place >= 0]
            if found:
                cut, stop = min(found)
                return self._finish(sequence, ids, FinishReason.STOP, stop, text[:cut])
        if is_complete:
            return self._finish(sequence, ids, FinishReason.STOP, None)
        if len(ids) >= params.max_tokens:
            return self._finish(sequence, ids, FinishReason.LENGTH, None)
        return None

    def stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        """Return the tokens that end an answer."""
        eos: frozenset[int] = frozenset() if params.ignore_eos else self._eos_token_ids
        return eos.union(params.stop_token_ids)

    def beam_output(self, params: SamplingParams, index: int, beam: FinishedBeam) -> SampleOutput:
        """Return a finished beam as an answer; `output` says what is kept of a token that stops."""
        *before, last = beam.token_ids
        is_stopped = last in self.stop_token_ids(params)
        return SampleOutput(
            index=index,
            text=self._tokenizer.decode(before if is_stopped else [*before, last]),
            token_ids=beam.token_ids,
            finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
            stop_reason=last if last in params.stop_token_ids else None,
            beam_score=beam.score,
        )

    def _may_hold_stop(self, ids: list[int], stops: tuple[str, ...]) -> bool:
        """Look for a stop string in the text of the last tokens only.

        Every token but a special one adds at least a byte, so a stop string that the last token
        completes lies within as many tokens as it has bytes; a few more guard the left edge, where
        decoding may drop a space or half a character.
        """
        longest = max(len(stop.encode()) for stop in stops)
        tail = self._tokenizer.decode(ids[-(longest + 8) :])
        return any(stop in tail for stop in stops)

    def _finish(
        self,
        sequence: Sequence,
        text_ids: list[int],
        reason: FinishReason,
        stop_reason: str | int | None,
        text: str | None = None,
    ) -> SampleOutput:
        return SampleOutput(
            index=sequence.sample_index,
            text=self._tokenizer.decode(text_ids) if text is None else text,
            token_ids=tuple(sequence.known_output_token_ids),
            finish_reason=reason,
            stop_reason=stop_reason,
        )
