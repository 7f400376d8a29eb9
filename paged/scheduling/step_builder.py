"""StepBuilder: collects the chunks of a step, many at once or one by one, and lays them out."""

from collections.abc import Sequence as Seq

import numpy as np

from pagedrun.paged.cache.block_transfer import BlockTransfer
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import (
    NO_SCORES,
    NO_STATE,
    UNKNOWN_TOKEN,
    Int64s,
    SequenceTable,
)
from pagedrun.paged.scheduling.step_input import Draws, StepInput

_NONE: Int64s = np.zeros(0, dtype=np.int64)


class StepBuilder:
    """The chunks of a step that is being scheduled, in their order, and its transfers."""

    def __init__(self, table: SequenceTable) -> None:
        self._table = table
        self._decoding: Int64s = _NONE  # places of chunks of one generated token
        self._places: list[int] = []  # of the chunks behind them
        self._starts: list[int] = []
        self._store_from: list[int] = []
        self._score_from: list[int] = []
        self._sequences: list[Sequence] = []
        self._read_slots: list[Int64s] = []
        self._write_slots: list[Int64s] = []
        self.transfers: list[BlockTransfer] = []

    def decode(self, places: Int64s) -> None:
        """Begin with chunks of one token each: the newest of each of these sequences."""
        self._decoding = places

    def pass_states(self, reads: Int64s, writes: Int64s) -> None:
        """Say which slots the chunks just added read and write: for all of them, or for none."""
        self._read_slots.append(reads)
        self._write_slots.append(writes)

    def add(
        self, sequence: Sequence, start: int, store_from: int, score_from: int = NO_SCORES
    ) -> None:
        """Add the chunk from `start` to where the sequence is computed now; see `StepInput`."""
        self._places.append(sequence.place)
        self._starts.append(start)
        self._store_from.append(store_from)
        self._score_from.append(score_from)
        self._sequences.append(sequence)

    @property
    def places(self) -> Int64s:
        """[num_chunks] int64, the places of the chunks' sequences."""
        return np.concatenate([self._decoding, np.array(self._places, dtype=np.int64)])

    def build(self) -> StepInput:
        """Lay out the chunks; their sequences are as they will be behind the step."""
        table, places = self._table, self.places
        ends = table.num_computed_tokens[places]
        starts = np.concatenate([ends[: len(self._decoding)] - 1, _array(self._starts)])
        store_from = np.concatenate([starts[: len(self._decoding)], _array(self._store_from)])
        num_outputs = table.num_output_tokens[places]
        num_prompt = table.num_prompt_tokens[places]
        samples = ends == num_prompt + num_outputs
        last = np.where(num_outputs > 0, table.last_outputs(places), 0)
        is_unknown = samples & (last == UNKNOWN_TOKEN)
        behind = zip(self._sequences, self._starts, ends[len(self._decoding) :], strict=True)
        input_ids = [last[: len(self._decoding)].astype(np.int64)]
        input_ids += [_array(each.token_ids(start, int(end))) for each, start, end in behind]
        not_scored = np.full(len(self._decoding), NO_SCORES)
        return StepInput(
            uids=table.uid[places],
            rows=table.row[places],
            sample=table.sample[places],
            starts=starts,
            ends=ends,
            score_from=np.concatenate([not_scored, _array(self._score_from)]),
            store_from=store_from,
            num_prompt_tokens=num_prompt,
            num_read_once_tokens=table.num_read_once_tokens[places],
            max_num_tokens=num_prompt + table.max_tokens[places] - 1,
            num_blocks=table.num_blocks(places),
            read_slots=_slots(self._read_slots, len(places)),
            write_slots=_slots(self._write_slots, len(places)),
            samples=samples,
            input_ids=np.concatenate(input_ids),
            sources=table.num_draw[places[is_unknown]],
            targets=self._targets(ends[len(self._decoding) :] - samples[len(self._decoding) :]),
            num_top=int(table.num_top[places].max(initial=0)),
            block_tables=tuple(each.gather(places) for each in table.kv_groups),
            draws=self._draws(places, samples),
            transfers=tuple(self.transfers),
        )

    def _targets(self, ends: Int64s) -> Int64s:
        """Return the tokens to score: behind each position of a chunk up to its entry of `ends`."""
        found: list[int] = []
        chunks = zip(self._sequences, self._starts, self._score_from, ends.tolist(), strict=True)
        for sequence, start, score_from, end in chunks:
            first = max(start, score_from)
            if first < end:
                found += sequence.token_ids(first + 1, end + 1)
        return _array(found)

    def _draws(self, places: Int64s, samples: "np.ndarray") -> Draws:
        table = self._table
        (chunk,) = np.nonzero(samples)
        sampling = places[samples]
        sample, num_pending = table.sample[sampling], table.num_pending[sampling]
        if (num_pending > 1).any():
            chunk, sampling = np.repeat(chunk, num_pending), np.repeat(sampling, num_pending)
            firsts = np.repeat(np.cumsum(num_pending) - num_pending, num_pending)
            sample = np.repeat(sample, num_pending) + np.arange(len(chunk)) - firsts
        num_outputs = table.num_output_tokens[sampling]
        num_missing = np.maximum(table.min_tokens[sampling] - num_outputs, 0)
        (early,) = np.nonzero(num_missing)
        given = {}
        if table.only_scores[sampling].any():
            given = {
                draw: table.continuations[place][int(sample[draw])].token_ids[num_outputs[draw]]
                for draw, place in enumerate(sampling.tolist())
                if place in table.continuations
            }
        stops = {draw: table.stop_token_ids[int(sampling[draw])] for draw in early.tolist()}
        return Draws(
            chunk=chunk,
            temperature=table.temperature[sampling],
            top_k=table.top_k[sampling],
            top_p=table.top_p[sampling],
            min_p=table.min_p[sampling],
            seed=table.seed[sampling],
            row=table.row[sampling],
            sample=sample,
            position=table.num_prompt_tokens[sampling] + num_outputs,
            num_missing=num_missing,
            wants_logprobs=table.wants_logprobs[sampling],
            stop_token_ids=stops,
            given=given,
        )


def _array(numbers: Seq[int]) -> Int64s:
    return np.array(numbers, dtype=np.int64)


def _slots(of_chunks: Seq[Int64s], num_chunks: int) -> Int64s:
    if not of_chunks:
        return np.full(num_chunks, NO_STATE)
    return np.concatenate(of_chunks)
