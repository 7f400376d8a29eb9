"""StepInput: tokens, blocks and draws of one step, and the block transfers before it.

`StepBuilder` collects the chunks while the step is scheduled, and lays them out as arrays.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from pagedrun.kernels.array_types import Bools, Float32s, Int32s, Int64s
from pagedrun.paged.cache.block_pool import BlockTransfer
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.sequence_table import (
    NO_SCORES,
    NO_STATE,
    NO_UID,
    UNKNOWN_TOKEN,
    SequenceTable,
)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """Draws of a step: one for each pending sample of each chunk that samples, in order.

    All [num_draws]. chunk: int64, index of the chunk with the logits. temperature, top_p, min_p:
    float32. top_k: int32. seed, row, sample, position: int64; position: of the new token.
    num_missing: int64, tokens to generate before the answer may stop, 0 if it may. wants_logprobs:
    bool, the log-probability is requested. waits: bool, the draw follows a draft, and is made when
    the host knows that the draft is right. stop_token_ids: by draw, stop tokens of the request,
    where it may not stop. given: by draw, a given token that is only scored.
    """

    chunk: Int64s
    temperature: Float32s
    top_k: Int32s
    top_p: Float32s
    min_p: Float32s
    seed: Int64s
    row: Int64s
    sample: Int64s
    position: Int64s
    num_missing: Int64s
    wants_logprobs: Bools
    waits: Bools
    stop_token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.chunk)

    def has_filters(self, greedy_below: float) -> bool:
        """Return whether a draw with at least this temperature has top_k, top_p or min_p."""
        filters = (self.top_k > 0) | (self.top_p < 1.0) | (self.min_p > 0.0)
        return bool((filters & (self.temperature >= greedy_below)).any())

    def part(self, chosen: Bools, first_chunk: int) -> "SamplingMetadata":
        """Return the chosen draws, their chunks counted from `first_chunk`."""
        row_indices = np.cumsum(chosen) - 1
        arrays = {name: getattr(self, name)[chosen] for name in _arrays_of(self)}
        arrays["chunk"] = arrays["chunk"] - first_chunk
        stops = {int(row_indices[d]): ids for d, ids in self.stop_token_ids.items() if chosen[d]}
        given = {int(row_indices[d]): token for d, token in self.given.items() if chosen[d]}
        return SamplingMetadata(**arrays, stop_token_ids=stops, given=given)


class Drafted(NamedTuple):
    """Drafts of a sequence in a step, and the number of the first draw behind them.

    row_index, uid: of the sequence. position: index of the first draft in its answer. Draw
    `first_draw + i` follows `tokens[i]`.
    """

    row_index: int
    uid: int
    position: int
    tokens: tuple[int, ...]
    first_draw: int


@dataclass(frozen=True, slots=True)
class StepInput:
    """Chunks of one step, the tokens to draw after them, and the block transfers before them.

    A chunk is the tokens `[start, end)` of a sequence. Those before `store_from` are in the cache
    and are not written again. The logits of the sequence's last token are sampled from; those of
    other tokens from position `score_from` on score the following token.

    Of each chunk, [num_chunks] int64: `uids`, number of its sequence in the run, negative ones of
    drafts, different in a step; `rows`, index of the request; `sample`, index of the answer;
    `starts`, `ends`, `score_from`, `store_from`;
    `num_prompt_tokens`; `num_read_once_tokens`; `max_num_tokens`, tokens that the sequence may
    store; `read_slots`, `write_slots`, slots of the recurrent state before and after the chunk,
    `NO_STATE` for zeros, and in a model without recurrent layers.
    samples: [num_chunks] bool. input_ids: [num_tokens] int64, chunk by chunk, `UNKNOWN_TOKEN` for a
    token sampled by the previous step; `sources` [num_unknown] int64 has the index in that step of
    each. targets: [num_scored] int64, the tokens to score, chunk by chunk. num_top: number of most
    likely tokens requested beside a scored token. block_tables: of each group of layers,
    [num_chunks, width] int32, zeros without a block. drafts: of sequences whose newest token is in
    the step; each is a chunk of its own behind all others, with a draw behind all others.
    """

    uids: Int64s
    rows: Int64s
    sample: Int64s
    starts: Int64s
    ends: Int64s
    score_from: Int64s
    store_from: Int64s
    num_prompt_tokens: Int64s
    num_read_once_tokens: Int64s
    max_num_tokens: Int64s
    read_slots: Int64s
    write_slots: Int64s
    samples: Bools
    input_ids: Int64s
    sources: Int64s
    targets: Int64s
    num_top: int
    block_tables: tuple[Int32s, ...]
    draws: SamplingMetadata
    transfers: Seq[BlockTransfer] = ()
    drafts: tuple[Drafted, ...] = ()

    @property
    def num_chunks(self) -> int:
        """Chunks of the step."""
        return len(self.starts)

    @property
    def num_tokens(self) -> int:
        """Tokens of all chunks."""
        return len(self.input_ids)

    @property
    def has_prompts(self) -> bool:
        """True if any token is one of a prompt."""
        return bool((self.starts < self.num_prompt_tokens).any())

    @property
    def num_samples(self) -> int:
        """Chunks that end with logits to sample from."""
        return int(self.samples.sum())

    @property
    def first_scored(self) -> Int64s:
        """[num_chunks] int64, the first position of each chunk that may have a target."""
        return np.maximum(self.starts, self.score_from)

    @property
    def num_scored(self) -> Int64s:
        """[num_chunks] int64, number of targets of each chunk."""
        counts: Int64s = np.maximum(self.ends - self.samples - self.first_scored, 0)
        return counts

    def split(self, chosen: Bools) -> "tuple[StepInput, StepInput | None]":
        """Return the chosen chunks, at least one, and the others, None without any.

        They may be computed in either order if none reads what another writes.
        """
        if chosen.all():
            return self, None
        return self._chunks(chosen), self._chunks(~chosen)

    def _chunks(self, chosen: Bools) -> "StepInput":
        is_theirs = np.repeat(chosen, self.ends - self.starts)
        of_draws = chosen[self.draws.chunk]
        draws = self.draws.part(of_draws, 0)
        return self._part(
            chosen,
            input_ids=self.input_ids[is_theirs],
            sources=self.sources[is_theirs[self.input_ids < 0]],
            targets=self.targets[np.repeat(chosen, self.num_scored)],
            draws=replace(draws, chunk=(np.cumsum(chosen) - 1)[draws.chunk]),
            transfers=self.transfers,
        )

    def pieces(self, max_tokens: int) -> "list[StepInput]":
        """Return steps without transfers of at most `max_tokens` tokens each.

        To be computed in this order, because a chunk may read what an earlier one writes.
        """
        found, rest = [], self
        while rest.num_tokens > max_tokens:
            first, rest = rest._cut(max_tokens)
            found.append(first)
        return [*found, rest]

    def _cut(self, num_tokens: int) -> "tuple[StepInput, StepInput]":
        """Return the first tokens, and the others."""
        offsets = np.cumsum(self.ends - self.starts)
        last = int(np.searchsorted(offsets, num_tokens))  # the chunk with the last of them
        cut = int(self.ends[last] - (offsets[last] - num_tokens))
        first, second = self._before(last, cut, num_tokens), self._behind(last, cut, num_tokens)
        num_scored = int(first.num_scored.sum())
        return (
            replace(first, targets=self.targets[:num_scored]),
            replace(second, targets=self.targets[num_scored:]),
        )

    def _before(self, last: int, cut: int, num_tokens: int) -> "StepInput":
        """Return the chunks up to and with `last`, that one up to position `cut`."""
        is_whole = cut == self.ends[last]
        samples, ends = self.samples[: last + 1].copy(), self.ends[: last + 1].copy()
        ends[last] = cut
        samples[last] &= is_whole
        return self._part(
            slice(0, last + 1),
            ends=ends,
            samples=samples,
            input_ids=self.input_ids[:num_tokens],
            sources=self.sources[: self._num_unknown(0, num_tokens)],
            draws=self.draws.part(self.draws.chunk < last + is_whole, 0),
        )

    def _behind(self, first: int, cut: int, num_tokens: int) -> "StepInput":
        """Return the chunks from `first` on, that one from position `cut` on."""
        is_whole = cut == self.ends[first]
        first += is_whole
        starts, store_from = self.starts[first:].copy(), self.store_from[first:].copy()
        read_slots = self.read_slots[first:].copy()
        if not is_whole:
            starts[0] = cut
            store_from[0] = max(store_from[0], cut)
            read_slots[0] = self.write_slots[first]
        return self._part(
            slice(first, None),
            starts=starts,
            store_from=store_from,
            read_slots=read_slots,
            input_ids=self.input_ids[num_tokens:],
            sources=self.sources[self._num_unknown(0, num_tokens) :],
            draws=self.draws.part(self.draws.chunk >= first, first),
        )

    def _num_unknown(self, start: int, end: int) -> int:
        return int((self.input_ids[start:end] < 0).sum())

    def _part(self, chunks: slice | Bools, **changes: Any) -> "StepInput":
        of_chunks = {
            name: getattr(self, name)[chunks]
            for name in _arrays_of(self)
            if name not in ("input_ids", "sources", "targets")
        }
        tables = tuple(each[chunks] for each in self.block_tables)
        kept = {"targets": self.targets, "num_top": self.num_top, "block_tables": tables}
        return StepInput(**{**of_chunks, **kept, **changes})


def _arrays_of(value: SamplingMetadata | StepInput) -> list[str]:
    names = (each.name for each in fields(value))
    return [name for name in names if isinstance(getattr(value, name), np.ndarray)]


_NONE: Int64s = np.zeros(0, dtype=np.int64)


class StepBuilder:
    """Builder of a step: its chunks, in order, and its transfers."""

    def __init__(self, table: SequenceTable) -> None:
        self._table = table
        self._decoding: Int64s = _NONE  # of chunks of one generated token
        self._row_indices: list[int] = []  # of the chunks behind them
        self._starts: list[int] = []
        self._store_from: list[int] = []
        self._score_from: list[int] = []
        self._sequences: list[Sequence] = []
        self._read_slots: list[Int64s] = []
        self._write_slots: list[Int64s] = []
        self._drafts: list[tuple[int, tuple[int, ...]]] = []  # row indices, and tokens
        self.transfers: list[BlockTransfer] = []

    def decode(self, row_indices: Int64s) -> None:
        """Begin with a chunk of one token, the newest, of each of these sequences."""
        self._decoding = row_indices

    def chunk_start(self, row_index: int) -> int | None:
        """Return the first position of the chunk of a sequence, None without one."""
        if (self._decoding == row_index).any():
            return int(self._table.num_computed_tokens[row_index]) - 1
        if row_index in self._row_indices:
            return self._starts[self._row_indices.index(row_index)]
        return None

    def draft(self, row_index: int, tokens: Seq[int]) -> None:
        """Add drafts behind the newest token of a sequence, the last one of its chunk."""
        self._drafts.append((row_index, tuple(tokens)))

    def pass_states(self, reads: Int64s, writes: Int64s) -> None:
        """Set the state slots that the chunks just added read and write; in a step, all or none."""
        self._read_slots.append(reads)
        self._write_slots.append(writes)

    def add(
        self, sequence: Sequence, start: int, store_from: int, score_from: int = NO_SCORES
    ) -> None:
        """Add the chunk from `start` to the sequence's `num_computed_tokens`; see `StepInput`."""
        self._row_indices.append(sequence.row_index)
        self._starts.append(start)
        self._store_from.append(store_from)
        self._score_from.append(score_from)
        self._sequences.append(sequence)

    @property
    def row_indices(self) -> Int64s:
        """[num_chunks] int64, the row indices of the chunks' sequences."""
        return np.concatenate([self._decoding, np.array(self._row_indices, dtype=np.int64)])

    def build(self) -> StepInput:
        """Return the step. The sequences are already in their state after it."""
        table, row_indices = self._table, self.row_indices
        num_chunks, drafted = len(row_indices), _NONE
        ahead = np.zeros(num_chunks, dtype=np.int64)  # drafts up to the chunk's end
        if self._drafts:
            counts = [len(tokens) for _, tokens in self._drafts]
            drafted = _array([token for _, tokens in self._drafts for token in tokens])
            of_drafts = np.repeat(_array([row_index for row_index, _ in self._drafts]), counts)
            row_indices = np.concatenate([row_indices, of_drafts])
            ahead = np.concatenate([ahead, *(np.arange(1, count + 1) for count in counts)])
        ends = table.num_computed_tokens[row_indices] + ahead
        num_decoding = len(self._decoding)
        starts = np.concatenate(
            [ends[:num_decoding] - 1, _array(self._starts), ends[num_chunks:] - 1]
        )
        store_from = np.concatenate(
            [starts[:num_decoding], _array(self._store_from), starts[num_chunks:]]
        )
        num_outputs = table.num_output_tokens[row_indices] + ahead
        num_prompt = table.num_prompt_tokens[row_indices]
        samples = ends == num_prompt + num_outputs
        last = np.where(num_outputs > 0, table.last_outputs(row_indices), 0)
        is_unknown = samples & (last == UNKNOWN_TOKEN) & (ahead == 0)
        behind = zip(self._sequences, self._starts, ends[num_decoding:num_chunks], strict=True)
        input_ids = [last[:num_decoding].astype(np.int64)]
        input_ids += [_array(each.token_ids(start, int(end))) for each, start, end in behind]
        input_ids.append(drafted)
        scored_from = [np.full(num_decoding, NO_SCORES), _array(self._score_from)]
        scored_from.append(np.full(len(drafted), NO_SCORES))
        draws = self._draws(row_indices, samples, num_outputs, ahead)
        return StepInput(
            uids=np.concatenate(
                [table.uid[row_indices[:num_chunks]], NO_UID - 1 - np.arange(len(drafted))]
            ),
            rows=table.row[row_indices],
            sample=table.sample[row_indices],
            starts=starts,
            ends=ends,
            score_from=np.concatenate(scored_from),
            store_from=store_from,
            num_prompt_tokens=num_prompt,
            num_read_once_tokens=table.num_read_once_tokens[row_indices],
            max_num_tokens=num_prompt + table.max_tokens[row_indices] - 1,
            read_slots=_slots(self._read_slots, len(row_indices)),
            write_slots=_slots(self._write_slots, len(row_indices)),
            samples=samples,
            input_ids=np.concatenate(input_ids),
            sources=table.num_draw[row_indices[is_unknown]],
            targets=self._targets(ends[num_decoding:num_chunks] - samples[num_decoding:num_chunks]),
            num_top=int(table.num_top[row_indices].max(initial=0)),
            block_tables=tuple(each.gather(row_indices) for each in table.kv_groups),
            draws=draws,
            transfers=tuple(self.transfers),
            drafts=tuple(self._drafted(len(draws) - len(drafted))),
        )

    def _drafted(self, first_draw: int) -> Iterator[Drafted]:
        """Yield the drafts of each sequence; first_draw: the first behind any."""
        table = self._table
        for row_index, tokens in self._drafts:
            position = int(table.num_output_tokens[row_index])
            yield Drafted(row_index, int(table.uid[row_index]), position, tokens, first_draw)
            first_draw += len(tokens)

    def _targets(self, ends: Int64s) -> Int64s:
        """Return the tokens to score, which follow the positions of each chunk before its end."""
        found: list[int] = []
        chunks = zip(self._sequences, self._starts, self._score_from, ends.tolist(), strict=True)
        for sequence, start, score_from, end in chunks:
            first = max(start, score_from)
            if first < end:
                found += sequence.token_ids(first + 1, end + 1)
        return _array(found)

    def _draws(
        self, row_indices: Int64s, samples: "np.ndarray", num_outputs: Int64s, ahead: Int64s
    ) -> SamplingMetadata:
        """Return the draws.

        num_outputs, ahead: [num_chunks] int64, tokens of each answer at its end, drafts included,
        and drafts among them.
        """
        table = self._table
        waits = table.follows_tokens[row_indices] & (ahead > 0)
        (chunk,) = np.nonzero(samples)
        sampling = row_indices[samples]
        sample, num_pending = table.sample[sampling], table.num_pending[sampling]
        num_outputs = num_outputs[samples]
        if (num_pending > 1).any():
            chunk, sampling = np.repeat(chunk, num_pending), np.repeat(sampling, num_pending)
            num_outputs = np.repeat(num_outputs, num_pending)
            firsts = np.repeat(np.cumsum(num_pending) - num_pending, num_pending)
            sample = np.repeat(sample, num_pending) + np.arange(len(chunk)) - firsts
        num_missing = np.maximum(table.min_tokens[sampling] - num_outputs, 0)
        (early,) = np.nonzero(num_missing)
        given = {}
        if table.only_scores[sampling].any():
            given = {
                draw: table.continuations[row_index][int(sample[draw])].token_ids[num_outputs[draw]]
                for draw, row_index in enumerate(sampling.tolist())
                if row_index in table.continuations
            }
        stops = {draw: table.stop_token_ids[int(sampling[draw])] for draw in early.tolist()}
        return SamplingMetadata(
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
            waits=waits[chunk],
            stop_token_ids=stops,
            given=given,
        )


def _array(numbers: Seq[int]) -> Int64s:
    return np.array(numbers, dtype=np.int64)


def _slots(of_chunks: Seq[Int64s], num_chunks: int) -> Int64s:
    if not of_chunks:
        return np.full(num_chunks, NO_STATE)
    return np.concatenate(of_chunks)
