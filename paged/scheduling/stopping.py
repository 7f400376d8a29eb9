"""When a sequence ends, and what its text is then."""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.scheduling.beams.beam_search import FinishedBeam
from pagedrun.paged.scheduling.repetition import repeats
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import Int64s, SequenceTable
from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.incremental_text import IncrementalText
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling.sampling_params import SamplingParams

REPETITION = "repetition"  # the stop reason of an answer that goes round in a circle


class StopRule:
    """Decides after each known token whether a sequence is finished.

    In this order: an end-of-sequence token (unless `ignore_eos`) or one of `stop_token_ids`, a
    stop string, a repetition (`stop_on_repetition`), the end of a structure behind which nothing
    may follow, then `max_tokens`. Nothing but the last two ends a sequence before `min_tokens`, and
    a stop string counts only if it ends behind the first `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Seq[int]) -> None:
        self._texts = AnswerText(tokenizer)
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
        what follows it are cut from the text; with `include_stop_str_in_output` the text has
        either. `stop_reason` is the stop token or string, `None` for an end-of-sequence token. A
        thought is kept apart from the text. Tokens that are given, or dropped, are no answer.
        """
        params = sequence.request.params
        if sequence.only_scores:
            return SampleOutput(sequence.sample_index, "", (), FinishReason.LENGTH)
        num_known = sequence.num_known_outputs
        [last] = sequence.known_outputs(num_known - 1)
        may_stop = num_known >= params.min_tokens
        if may_stop and last in params.stop_token_ids:
            return self._stopped(sequence, last)
        if may_stop and not params.ignore_eos and last in self._eos_token_ids:
            return self._stopped(sequence, None)
        if may_stop and params.stop and (cut := self._cut(sequence)) is not None:
            text, stop = cut
            return self._finish(sequence, FinishReason.STOP, stop, text=text)
        if may_stop and params.stop_on_repetition and _repeats(sequence):
            return self._finish(sequence, FinishReason.STOP, REPETITION)
        if is_complete:
            return self._finish(sequence, FinishReason.STOP, None)
        if num_known >= params.max_tokens:
            return self._finish(sequence, FinishReason.LENGTH, None)
        return None

    def _stopped(self, sequence: Sequence, stop: int | None) -> SampleOutput:
        """Return the sample that its last token ended."""
        num_dropped = int(not sequence.request.params.include_stop_str_in_output)
        return self._finish(sequence, FinishReason.STOP, stop, num_dropped=num_dropped)

    def stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        """Return the tokens that end an answer."""
        eos: frozenset[int] = frozenset() if params.ignore_eos else self._eos_token_ids
        return eos.union(params.stop_token_ids)

    def beam_output(self, request: Request, index: int, beam: FinishedBeam) -> SampleOutput:
        """Return a finished beam as an answer; `output` says what is kept of a token that stops."""
        params, texts = request.params, self._texts
        *before, last = beam.token_ids
        is_stopped = last in self.stop_token_ids(params)
        kept = before if is_stopped else [*before, last]
        reasoning, answer = texts.split(request, kept, texts.text(request, kept))
        return SampleOutput(
            index=index,
            text=answer,
            token_ids=beam.token_ids,
            finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
            stop_reason=last if last in params.stop_token_ids else None,
            reasoning=reasoning,
            beam_score=beam.score,
        )

    def _cut(self, sequence: Sequence) -> tuple[str, str] | None:
        """Return the text up to the first stop string and that string, `None` if there is none.

        What ends within the first `min_tokens` tokens does not count, then or later.
        """
        params = sequence.request.params
        if not self._may_hold_stop(sequence):
            return None
        ids = sequence.known_outputs()
        text = self._texts.text(sequence.request, ids)
        early = self._texts.num_early(sequence.request, ids, params.min_tokens)
        places = [(text.find(s, max(0, early - len(s) + 1)), s) for s in params.stop]
        found = [(place, stop) for place, stop in places if place >= 0]
        if not found:
            return None
        place, stop = min(found)
        return text[: place + len(stop) * params.include_stop_str_in_output], stop

    def _may_hold_stop(self, sequence: Sequence) -> bool:
        """Look for a stop string where the newest tokens may have completed one."""
        stops = sequence.request.params.stop
        if sequence.text is None:
            decode = self._texts.decoder(sequence.request.params)
            sequence.text = IncrementalText(decode, max(map(len, stops)) - 1)
        end = sequence.text.feed(sequence.known_outputs(sequence.text.num_tokens))
        return any(stop in end for stop in stops)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        stop_reason: str | int | None,
        *,
        text: str | None = None,
        num_dropped: int = 0,
    ) -> SampleOutput:
        """text: that of the tokens up to a stop, None for that of all but `num_dropped` of them."""
        request, ids = sequence.request, sequence.known_outputs()
        kept = ids[: len(ids) - num_dropped]
        text = self._texts.text(request, kept) if text is None else text
        reasoning, answer = self._texts.split(request, kept, text)
        return SampleOutput(
            index=sequence.sample_index,
            text=answer,
            token_ids=tuple(ids),
            finish_reason=reason,
            stop_reason=stop_reason,
            reasoning=reasoning,
        )


def _repeats(sequence: Sequence) -> bool:
    tokens = sequence.table.outputs[sequence.place, : sequence.num_known_outputs]
    return repeats(tokens, sequence.request.params.stop_on_repetition)
