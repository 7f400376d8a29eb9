"""SequenceTable: state of all live sequences as arrays, and their block tables.

A step is a few array operations. A sequence has a place, its index in every array, from its
admission attempt to its end. A later sequence reuses the place of a finished one; `uid`
distinguishes them.
"""

import numpy as np

from pagedrun.kernels.array_types import Bools, Float32s, Int32s, Int64s
from pagedrun.paged.scheduling.beam_search import num_candidates
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.request import Request

UNKNOWN_TOKEN = -2  # sampled on the device, and not looked at yet
NO_UID = -1
NO_STATE = -1  # no slot: the state before the first token, or that of a model without recurrence
NO_SCORES = np.iinfo(np.int64).max  # no position's next token is to be scored


_COLUMNS = {
    "uid": np.int64,
    "row": np.int64,
    "sample": np.int64,
    "num_prompt_tokens": np.int64,
    "num_output_tokens": np.int64,
    "num_computed_tokens": np.int64,
    "num_stored_tokens": np.int64,
    "num_tokens_ever_computed": np.int64,
    "num_pending": np.int64,
    "num_shared_tokens": np.int64,
    "num_read_once_tokens": np.int64,
    "num_draw": np.int64,
    "group": np.int64,
    "max_tokens": np.int64,
    "min_tokens": np.int64,
    "ignores_eos": np.bool_,
    "has_stops": np.bool_,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "seed": np.int64,
    "wants_logprobs": np.bool_,
    "num_top": np.int64,
    "only_scores": np.bool_,
    "num_beams": np.int64,
    "score_from": np.int64,
    "state_slot": np.int64,
}
_FIRST_CAPACITY = 64
_FIRST_WIDTH = 16


class SequenceTable:
    """Columns [capacity], indexed by place; all grow as needed, so keep no view of them.

    uid: which of the run's sequences it is, `NO_UID` in a hole. row, sample: whose answer.
    num_pending: samples to draw from the next logits. num_draw: where its newest token is among
    those that its last step sampled. group: see `group_number`. has_stops: whether it has stops of
    its own. max_tokens, min_tokens, ignores_eos, temperature, top_k,
    top_p, min_p, seed: of its parameters. wants_logprobs: whether those of its generated tokens are
    asked for. num_top: how many of the likeliest tokens are asked for beside any of its tokens.
    only_scores: whether its answer's tokens are given, or dropped. num_beams: how many beams it may
    come to while it computes their prompt, 1 of a beam, 0 of any other. state_slot: what recurrent
    layers have of its computed tokens, `NO_STATE` if nothing. For the others see
    `Sequence`.

    stop_token_ids: by place, those of its own. continuations: by place, of those that have them,
    all of the request's. kv_groups: the block tables of each group of layers. outputs: [capacity,
    length] int32, generated token ids, `UNKNOWN_TOKEN` where the host has not seen one.
    """

    uid: Int64s
    row: Int64s
    sample: Int64s
    num_prompt_tokens: Int64s
    num_output_tokens: Int64s
    num_computed_tokens: Int64s
    num_stored_tokens: Int64s
    num_tokens_ever_computed: Int64s
    num_pending: Int64s
    num_shared_tokens: Int64s
    num_read_once_tokens: Int64s
    num_draw: Int64s
    group: Int64s
    max_tokens: Int64s
    min_tokens: Int64s
    ignores_eos: Bools
    has_stops: Bools
    temperature: Float32s
    top_k: Int32s
    top_p: Float32s
    min_p: Float32s
    seed: Int64s
    wants_logprobs: Bools
    num_top: Int64s
    only_scores: Bools
    num_beams: Int64s
    score_from: Int64s
    state_slot: Int64s

    def __init__(self, num_eos_tokens: int = 0, num_kv_groups: int = 1) -> None:
        """num_eos_tokens: number of tokens that end any answer. num_kv_groups: groups of layers."""
        self._num_eos_tokens = num_eos_tokens
        for name, dtype in _COLUMNS.items():
            setattr(self, name, np.zeros(_FIRST_CAPACITY, dtype=dtype))
        self.uid[:] = NO_UID
        self.kv_groups = tuple(BlockTables(_FIRST_CAPACITY) for _ in range(num_kv_groups))
        self.outputs: Int32s = np.zeros((_FIRST_CAPACITY, _FIRST_WIDTH), dtype=np.int32)
        self.stop_token_ids: dict[int, tuple[int, ...]] = {}
        self.continuations: dict[int, tuple[Continuation, ...]] = {}
        self._holes = list(range(_FIRST_CAPACITY - 1, -1, -1))
        self._num_added = 0

    def add(self, request: Request, group: tuple[int, int], sample: int, num_pending: int) -> int:
        """Add a row for a sequence without generated tokens and blocks; return its index."""
        if not self._holes:
            self._widen_columns()
        place = self._holes.pop()
        for name in _COLUMNS:
            getattr(self, name)[place] = 0
        for tables in self.kv_groups:
            tables.set(place, [])
        params = request.params
        self.uid[place] = self._num_added
        self._num_added += 1
        self.row[place] = request.index
        self.sample[place] = sample
        self.num_prompt_tokens[place] = len(request.prompt_token_ids)
        self.num_pending[place] = num_pending
        self.state_slot[place] = NO_STATE
        self.max_tokens[place] = params.max_num_drawn
        self.min_tokens[place] = params.min_tokens
        self.ignores_eos[place] = params.ignore_eos
        self.group[place] = group_number(group)
        self.stop_token_ids[place] = params.stop_token_ids
        self.has_stops[place] = params.has_stops
        self.temperature[place] = params.temperature
        self.top_k[place] = params.top_k
        self.top_p[place] = params.top_p
        self.min_p[place] = params.min_p
        self.seed[place] = params.seed
        self.wants_logprobs[place] = params.logprobs is not None
        self.num_top[place] = max(params.logprobs or 0, params.prompt_logprobs or 0)
        self.only_scores[place] = not params.max_tokens
        # The first sample's prompt is scored for all.
        is_scored = params.prompt_logprobs is not None and not sample
        self.score_from[place] = 0 if is_scored else NO_SCORES
        if params.has_beams:
            num_stops = self._num_eos_tokens + len(params.stop_token_ids)
            self.num_beams[place] = params.beam_width
            self.num_top[place] = num_candidates(params.beam_width, num_stops)
            self.wants_logprobs[place] = True
        if request.continuations:
            self._add_continuation(place, request.continuations)
        return place

    def copy(self, place: int, sample: int) -> int:
        """Give another sample of a sequence's request a place, with all that the sequence has,
        tokens and blocks included; return it. One sample is drawn from its next logits."""
        if not self._holes:
            self._widen_columns()
        new = self._holes.pop()
        for name in _COLUMNS:
            column = getattr(self, name)
            column[new] = column[place]
        for tables in self.kv_groups:
            tables.copy(place, new)
        num_outputs = self.num_output_tokens[place]
        self.outputs[new, :num_outputs] = self.outputs[place, :num_outputs]
        self.uid[new] = self._num_added
        self._num_added += 1
        self.sample[new] = sample
        self.num_pending[new] = 1
        self.stop_token_ids[new] = self.stop_token_ids[place]
        if place in self.continuations:
            self._add_continuation(new, self.continuations[place])
        return new

    def _add_continuation(self, place: int, continuations: tuple[Continuation, ...]) -> None:
        """Note the texts to score behind a prompt: each sample is given the tokens of its own."""
        self.continuations[place] = continuations
        self.max_tokens[place] = len(continuations[self.sample[place]].token_ids)
        self.wants_logprobs[place] = self.only_scores[place] = True
        self.num_top[place] = max(self.num_top[place], 1)  # whether a greedy choice would be it

    def remove(self, place: int) -> None:
        """Free a row."""
        self.uid[place] = NO_UID
        del self.stop_token_ids[place]
        self.continuations.pop(place, None)
        self._holes.append(place)

    def append_outputs(self, places: Int64s, tokens: "Int64s | int", count: int = 1) -> None:
        """Append tokens to the answers of these sequences. places: each at most once.

        tokens: one for each sequence, or one number for all; appended `count` times.
        """
        lengths = self.num_output_tokens[places]
        longest = int(lengths.max(initial=0)) + count
        if longest > self.outputs.shape[1]:
            self.outputs = widened(self.outputs, longest)
        if count == 1:
            self.outputs[places, lengths] = tokens
        else:
            columns = lengths[:, None] + np.arange(count)
            self.outputs[places[:, None], columns] = np.asarray(tokens)[..., None]
        self.num_output_tokens[places] = lengths + count

    def set_outputs(self, place: int, token_ids: list[int]) -> None:
        """Set the tokens of an answer."""
        if len(token_ids) > self.outputs.shape[1]:
            self.outputs = widened(self.outputs, len(token_ids))
        self.outputs[place, : len(token_ids)] = token_ids
        self.num_output_tokens[place] = len(token_ids)

    def give_tokens(self, places: Int64s) -> None:
        """Replace the tokens just appended by those of a continuation, where one is given.

        Behind the first token all follow that can be scored together, which are all but the last:
        that one is scored as a drawn token is.
        """
        for place in places[self.only_scores[places]].tolist():
            if place not in self.continuations:
                continue  # its token is dropped
            given = self.continuations[place][self.sample[place]].token_ids
            newest = int(self.num_output_tokens[place]) - 1
            self.outputs[place, newest] = given[newest]
            for token in given[1:-1] if newest == 0 else ():
                self.append_outputs(np.array([place]), token)
                self.score_from[place] = self.num_prompt_tokens[place]

    def num_tokens(self, places: Int64s) -> Int64s:
        """Return the prompt and generated tokens of each."""
        return self.num_prompt_tokens[places] + self.num_output_tokens[places]

    def last_outputs(self, places: Int64s) -> Int32s:
        """Return the newest generated token of each; any number for one that has none."""
        return self.outputs[places, self.num_output_tokens[places] - 1]

    def num_blocks(self, places: Int64s) -> Int64s:
        """Return the blocks that the tables of each have come to, those given back included."""
        total: Int64s = np.sum([tables.ends[places] for tables in self.kv_groups], axis=0)
        return total

    def _widen_columns(self) -> None:
        old = len(self.uid)
        for name in (*_COLUMNS, "outputs"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
        for tables in self.kv_groups:
            tables.add_places(old)
        self.uid[old:] = NO_UID
        self._holes = list(range(2 * old - 1, old - 1, -1))


def group_number(group: tuple[int, int]) -> int:
    """Return a group (its window, and its subtree in the window) as one number."""
    window, subtree = group
    return window << 32 | subtree


NO_BLOCK = -1  # given back


class BlockTables:
    """The tables of all sequences, by place; arrays grow as needed, so keep no view of them.

    ids: [capacity, width] int32, block `index` of a sequence holds its tokens from
    `index * block_size` on. ends: [capacity] int64, the index behind the last block of each.
    firsts: [capacity] int64, the index of the first that it still holds: those before it, which no
    later token reads, were given back, and their ids are `NO_BLOCK`.
    """

    def __init__(self, capacity: int) -> None:
        self.ids: Int32s = np.zeros((capacity, _FIRST_WIDTH), dtype=np.int32)
        self.firsts: Int64s = np.zeros(capacity, dtype=np.int64)
        self.ends: Int64s = np.zeros(capacity, dtype=np.int64)

    def block(self, place: int, index: int) -> int:
        """Return the block at an index of a table."""
        return int(self.ids[place, index])

    def has(self, place: int, index: int) -> bool:
        """Return whether a sequence holds a block at an index of its table."""
        return bool(self.firsts[place] <= index < self.ends[place])

    def held(self, place: int, start: int = 0) -> list[int]:
        """Return the blocks that a sequence holds, from index `start` on."""
        first = max(start, int(self.firsts[place]))
        ids: list[int] = self.ids[place, first : self.ends[place]].tolist()
        return ids

    def set(self, place: int, block_ids: list[int], first: int = 0) -> None:
        """Set the blocks of a table, the first of them at index `first`."""
        self.firsts[place] = first
        self.ends[place] = 0
        self.append(place, [NO_BLOCK] * first + block_ids)

    def append(self, place: int, block_ids: list[int]) -> None:
        """Append blocks to a table."""
        first = int(self.ends[place])
        end = first + len(block_ids)
        if end > self.ids.shape[1]:
            self.ids = widened(self.ids, end)
        self.ids[place, first:end] = block_ids
        self.ends[place] = end

    def append_one(self, place: int, block_id: int) -> None:
        """Append one block to a table."""
        count = self.ends[place]
        if count == self.ids.shape[1]:
            self.ids = widened(self.ids, count + 1)
        self.ids[place, count] = block_id
        self.ends[place] = count + 1

    def replace(self, place: int, index: int, block_id: int) -> None:
        """Replace the block at an index of a table."""
        self.ids[place, index] = block_id

    def cut(self, place: int, end: int) -> None:
        """Truncate a table at index `end`; the caller has counted the references."""
        self.ends[place] = end
        self.firsts[place] = min(self.firsts[place], end)

    def take_before(self, place: int, index: int) -> list[int]:
        """Remove the blocks before an index from a table; return them, to be freed."""
        first, index = int(self.firsts[place]), min(index, int(self.ends[place]))
        if index <= first:
            return []
        taken: list[int] = self.ids[place, first:index].tolist()
        self.ids[place, first:index] = NO_BLOCK
        self.firsts[place] = index
        return taken

    def num_common(self, one: int, two: int) -> int:
        """Return the number of leading blocks that two sequences have in common."""
        count = int(min(self.ends[one], self.ends[two]))
        differ = np.flatnonzero(self.ids[one, :count] != self.ids[two, :count])
        return int(differ[0]) if len(differ) else count

    def copy(self, source: int, target: int) -> None:
        """Give `target`, whose place was a hole, the same table."""
        end = self.ends[source]
        self.ids[target, :end] = self.ids[source, :end]
        self.firsts[target], self.ends[target] = self.firsts[source], end

    def gather(self, places: Int64s) -> Int32s:
        """Return copies of tables, [num_places, longest] int32, zeros where there is no block."""
        lengths = self.ends[places]
        width = int(lengths.max(initial=0))
        tables = self.ids[places, :width]
        tables[np.arange(width) >= lengths[:, None]] = 0
        if self.firsts[places].any():
            np.maximum(tables, 0, out=tables)
        return tables

    def add_places(self, count: int) -> None:
        """Make room for so many more sequences, without blocks."""
        self.ids = np.concatenate([self.ids, np.zeros((count, self.ids.shape[1]), dtype=np.int32)])
        self.firsts = np.concatenate([self.firsts, np.zeros(count, dtype=np.int64)])
        self.ends = np.concatenate([self.ends, np.zeros(count, dtype=np.int64)])


def widened(rows: Int32s, width: int) -> Int32s:
    """Return the same with room for at least `width` in each row, and twice as much as before."""
    wider = np.zeros((len(rows), max(width, 2 * rows.shape[1])), dtype=np.int32)
    wider[:, : rows.shape[1]] = rows
    return wider
