"""Stop rules of sequences, repetition detection, and continuation of beam searches after a step."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np

from pagedrun.kernels.array_types import Bools, Float32s, Int32s, Int64s
from pagedrun.paged.scheduling.beam_search import BeamSearch, FinishedBeam
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.incremental_text import IncrementalText
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import FinishReason, Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams

REPETITION = "repetition"  # stop reason of an answer with a repeated token cycle


class StopRule:
    """Decides after each known token whether a sequence is finished.

    In this order: an end-of-sequence token (unless `ignore_eos`) or one of `stop_token_ids`, a
    stop string, a repetition (`stop_on_repetition`), the end of a complete structure, then
    `max_tokens`. Only the last two end a sequence before `min_tokens`, and a stop string counts
    only if it ends after the first `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Seq[int]) -> None:
        self._texts = AnswerText(tokenizer)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._eos_array = np.array(sorted(self._eos_token_ids), dtype=np.int64)

    def may_end(
        self, table: SequenceTable, row_indices: Int64s, num_known: Int64s, tokens: Int64s
    ) -> Bools:
        """Return a mask of the sequences for `output` to check, [num_sequences]; others continue.

        num_known: number of known generated tokens of each. tokens: the last of them.
        """
        may_stop = num_known >= table.min_tokens[row_indices]
        is_eos = (tokens[:, None] == self._eos_array).any(axis=1) & ~table.ignores_eos[row_indices]
        at_limit = num_known >= table.max_tokens[row_indices]
        ends: Bools = at_limit | (may_stop & (is_eos | table.has_stops[row_indices]))
        return ends

    def output(self, sequence: Sequence, *, is_complete: bool = False) -> SampleOutput | None:
        """Return the finished sample, or `None` if the sequence continues.

        is_complete: its structure is complete and allows no further token. The stop token is kept
        in `token_ids` but not in the text; the text ends before a stop string; with
        `include_stop_str_in_output` it includes either. `stop_reason` is the stop token or string,
        `None` for an end-of-sequence token. A thought is not part of the text. Given or dropped
        tokens are no answer.
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
        """Return a sample that ends with a stop token."""
        num_dropped = int(not sequence.request.params.include_stop_str_in_output)
        return self._finish(sequence, FinishReason.STOP, stop, num_dropped=num_dropped)

    def stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        """Return the tokens that end an answer."""
        eos: frozenset[int] = frozenset() if params.ignore_eos else self._eos_token_ids
        return eos.union(params.stop_token_ids)

    def beam_output(self, request: Request, index: int, beam: FinishedBeam) -> SampleOutput:
        """Return a finished beam as an answer, with the text of its tokens as in `output`."""
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

        Stop strings that end within the first `min_tokens` tokens are ignored.
        """
        params = sequence.request.params
        if not self._may_hold_stop(sequence):
            return None
        ids = sequence.known_outputs()
        text = self._texts.text(sequence.request, ids)
        early = self._texts.num_early(sequence.request, ids, params.min_tokens)
        offsets = [(text.find(s, max(0, early - len(s) + 1)), s) for s in params.stop]
        begin, stop = min((each for each in offsets if each[0] >= 0), default=(0, None))
        if stop is None:
            return None
        return text[: begin + len(stop) * params.include_stop_str_in_output], stop

    def _may_hold_stop(self, sequence: Sequence) -> bool:
        """Return whether the newest tokens may have completed a stop string."""
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
        """Return the sample. text: up to a stop, None for that of all but `num_dropped` tokens."""
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
    tokens = sequence.table.outputs[sequence.row_index, : sequence.num_known_outputs]
    return repeats(tokens, sequence.request.params.stop_on_repetition)


MAX_CYCLE = 128  # tokens


def repeats(tokens: Int32s, count: int) -> bool:
    """Return whether the last tokens are a cycle of at most `MAX_CYCLE` tokens, `count` times.

    tokens: [num_tokens] int32.
    """
    longest = min(MAX_CYCLE, len(tokens) // count)
    if not longest:
        return False
    before = tokens[-2 : -longest - 2 : -1]  # tokens before the last, in reverse
    for cycle in (np.flatnonzero(before == tokens[-1]) + 1).tolist():
        run = tokens[len(tokens) - cycle * count :]
        if (run[cycle:] == run[:-cycle]).all():
            return True
    return False


class BeamSearches:
    """Chooses the beams that continue after a step; the scheduler forks and ends them."""

    def __init__(self, scheduler: Scheduler, stop_rule: StopRule) -> None:
        self._scheduler = scheduler
        self._stop_rule = stop_rule
        self._searches: dict[int, BeamSearch] = {}  # by row

    def begin(self, request: Request) -> None:
        """Add a request, if it is answered by beams."""
        params = request.params
        if params.has_beams:
            stops = self._stop_rule.stop_token_ids(params)
            self._searches[request.index] = BeamSearch(params, stops)

    def end(self, row: int) -> None:
        """Remove a request, by its index."""
        self._searches.pop(row, None)

    def advance(
        self, row_indices: Int64s, top_ids: Int64s, top_scores: Float32s
    ) -> Iterator[tuple[Sequence, SampleOutput]]:
        """Continue beam searches; yield the answers of finished ones, best first, each with the
        first sequence of its group.

        row_indices: [num_beams] int64, the beams of a step. top_ids, top_scores: [num_beams,
        num_top], int64 and float32, the most likely next tokens of each with log-probabilities.
        """
        scheduler, table = self._scheduler, self._scheduler.table
        draw_of = {row_index: draw for draw, row_index in enumerate(row_indices.tolist())}
        for row in dict.fromkeys(table.row[row_indices].tolist()):
            beams, search = scheduler.beams(row), self._searches[row]
            draws = [draw_of[beam.row_index] for beam in beams]
            tokens = table.outputs[row_indices[draws], : search.num_tokens]
            going = search.advance(tokens, top_ids[draws], top_scores[draws])
            if going:
                scheduler.branch(row, going)
                continue
            first = beams[0]
            scheduler.end_beams(row)
            for index, beam in enumerate(search.finished[: first.request.params.n]):
                yield first, self._stop_rule.beam_output(first.request, index, beam)
