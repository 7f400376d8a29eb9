"""StepInput: what one step computes, as arrays and plain values, and which blocks move before."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.cache.block_transfer import BlockTransfer
from pagedrun.paged.scheduling.sequence_table import Int32s, Int64s


@dataclass(frozen=True, slots=True)
class Draws:
    """The tokens to sample: one for each pending sample of each chunk that samples, in order.

    All [num_draws]. chunk: int64, in whose logits. temperature, top_p, min_p: float32. top_k:
    int32. seed, row, sample, position: int64; the last is that of the new token. num_missing:
    int64, tokens that the answer gets before it may stop, 0 if it may. wants_logprobs: bool,
    whether the token's log-probability is asked for. stop_token_ids: by draw, those of the request
    itself, where it may not stop. given: by draw, the token, where it is given, only to be scored.
    """

    chunk: Int64s
    temperature: NDArray[np.float32]
    top_k: Int32s
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: Int64s
    row: Int64s
    sample: Int64s
    position: Int64s
    num_missing: Int64s
    wants_logprobs: NDArray[np.bool_]
    stop_token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.chunk)

    def has_filters(self, greedy_below: float) -> bool:
        """Return whether a draw has top_k, top_p or min_p, and a temperature from that on."""
        filters = (self.top_k > 0) | (self.top_p < 1.0) | (self.min_p > 0.0)
        return bool((filters & (self.temperature >= greedy_below)).any())

    def part(self, chosen: NDArray[np.bool_], first_chunk: int) -> "Draws":
        """Return the chosen draws, their chunks counted from `first_chunk`."""
        places = np.cumsum(chosen) - 1
        arrays = {name: getattr(self, name)[chosen] for name in _arrays_of(self)}
        arrays["chunk"] = arrays["chunk"] - first_chunk
        stops = {int(places[d]): ids for d, ids in self.stop_token_ids.items() if chosen[d]}
        given = {int(places[d]): token for d, token in self.given.items() if chosen[d]}
        return Draws(**arrays, stop_token_ids=stops, given=given)


@dataclass(frozen=True, slots=True)
class StepInput:
    """The chunks of one step, the tokens to draw behind them, and the moves that come first.

    A chunk is the tokens `[start, end)` of a sequence. Those before `store_from` are in the cache
    already and are not written again. A chunk that ends with the sequence's last token gives
    logits to sample from. Those of its other tokens from position `score_from` on say how likely
    the token was that follows.

    Of each chunk, [num_chunks] int64: `uids`, which of the run's sequences it is of; `rows`, the
    request's index; `sample`, which of its answers; `starts`, `ends`, `score_from`, `store_from`;
    `num_prompt_tokens`; `num_read_once_tokens`; `max_num_tokens`, what the sequence may come to
    store; `num_blocks`, those that its tables have come to.
    `read_slots`, `write_slots`: where recurrent layers find the state before the chunk, and where
    they leave the one behind it; `NO_STATE` for zeros, and in a model without such layers.
    samples: [num_chunks] bool. input_ids: [num_tokens] int64, chunk by chunk; a token that the step
    before samples is `UNKNOWN_TOKEN`, and `sources` [num_unknown] int64 says which of that step's
    tokens each is. targets: [num_scored] int64, the tokens to score, chunk by chunk. num_top: how
    many of the likeliest tokens are wanted beside any token that has a score. block_tables:
    of each group of layers, [num_chunks, width] int32, zeros where there is no block.
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
    num_blocks: Int64s
    read_slots: Int64s
    write_slots: Int64s
    samples: NDArray[np.bool_]
    input_ids: Int64s
    sources: Int64s
    targets: Int64s
    num_top: int
    block_tables: tuple[Int32s, ...]
    draws: Draws
    transfers: Seq[BlockTransfer] = ()

    @property
    def num_chunks(self) -> int:
        """Chunks of the step."""
        return len(self.starts)

    @property
    def num_tokens(self) -> int:
        """Tokens of all chunks."""
        return len(self.input_ids)

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
        """[num_chunks] int64, how many tokens to score follow the tokens of each chunk."""
        counts: Int64s = np.maximum(self.ends - self.samples - self.first_scored, 0)
        return counts

    def split(self, chosen: NDArray[np.bool_]) -> "tuple[StepInput, StepInput | None]":
        """Return the chosen chunks, of which there are some, and the others, None for none.

        They may be computed in either order where none reads what another writes.
        """
        if chosen.all():
            return self, None
        return self._chunks(chosen), self._chunks(~chosen)

    def _chunks(self, chosen: NDArray[np.bool_]) -> "StepInput":
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

    def halves(self) -> "tuple[StepInput, StepInput]":
        """Return two steps, each with about half of the tokens, to be computed one by one.

        A chunk may read what another of its step wrote, if that was scheduled before it: the order
        is kept. The transfers are left out, as they are done by then. A step of one token cannot
        be cut.
        """
        middle = self.num_tokens // 2
        assert middle, "a step of one token cannot be cut"
        offsets = np.cumsum(self.ends - self.starts)
        last = int(np.searchsorted(offsets, middle))  # the chunk that holds the middle, or ends it
        cut = int(self.ends[last] - (offsets[last] - middle))
        first, second = self._before(last, cut, middle), self._behind(last, cut, middle)
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

    def _part(self, chunks: slice | NDArray[np.bool_], **changes: Any) -> "StepInput":
        of_chunks = {
            name: getattr(self, name)[chunks]
            for name in _arrays_of(self)
            if name not in ("input_ids", "sources", "targets")
        }
        tables = tuple(each[chunks] for each in self.block_tables)
        kept = {"targets": self.targets, "num_top": self.num_top, "block_tables": tables}
        return StepInput(**{**of_chunks, **kept, **changes})


def _arrays_of(value: Draws | StepInput) -> list[str]:
    names = (each.name for each in fields(value))
    return [name for name in names if isinstance(getattr(value, name), np.ndarray)]
