"""SequenceTable: state of all live sequences as arrays, and their block tables.

A step is a few array operations. A sequence has a row index, the same in every array, from its
admission attempt to its end. A later sequence reuses the row of a finished one; `uid`
distinguishes them.
"""

import numpy as np

from pagedrun.kernels.array_types import Bools, Float32s, Int32s, Int64s, element_types
from pagedrun.paged.scheduling.beam_search import num_candidates
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.request import Request

UNKNOWN_TOKEN = -2  # sampled on the device, not yet read by the host
NO_UID = -1
NO_STATE = -1  # no slot: the state before the first token, or that of a model without recurrence
NO_SCORES = np.iinfo(np.int64).max  # `score_from` without a token to score


_FIRST_CAPACITY = 64
_FIRST_WIDTH = 16


class SequenceTable:
    """Columns [capacity], indexed by row; all grow as needed, so keep no view of them.

    uid: number of the sequence in the run, `NO_UID` in a hole. row: index of its request. sample:
    index of its answer. num_pending: samples to draw from the next logits. num_draw: index of its
    newest token among those that its last step sampled. group: see `group_number`. max_tokens,
    min_tokens, ignores_eos, has_stops, temperature, top_k, top_p, min_p, seed, wants_logprobs:
    sampling parameters. num_top: number of most likely tokens requested beside any of its tokens.
    follows_tokens: see `SamplingParams`.
    only_scores: the tokens of its answer are given, or dropped. num_beams: maximum number of beams
    while their prompt is computed, 1 for a beam, 0 for any other sequence. state_slot: slot of its
    recurrent state, `NO_STATE` without one. For the others see `Sequence`.

    stop_token_ids, continuations: those of the request, by row index. kv_groups: block tables of
    each group of layers. outputs: [capacity, length] int32, generated token ids, `UNKNOWN_TOKEN`
    where the host has not read one.
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
    follows_tokens: Bools
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
        row_index = self._holes.pop()
        for name in _COLUMNS:
            getattr(self, name)[row_index] = 0
        for tables in self.kv_groups:
            tables.set(row_index, [])
        params = request.params
        self.uid[row_index] = self._num_added
        self._num_added += 1
        self.row[row_index] = request.index
        self.sample[row_index] = sample
        self.num_prompt_tokens[row_index] = len(request.prompt_token_ids)
        self.num_pending[row_index] = num_pending
        self.state_slot[row_index] = NO_STATE
        self.max_tokens[row_index] = params.max_num_drawn
        self.min_tokens[row_index] = params.min_tokens
        self.ignores_eos[row_index] = params.ignore_eos
        self.group[row_index] = group_number(group)
        self.stop_token_ids[row_index] = params.stop_token_ids
        self.has_stops[row_index] = params.has_stops
        self.temperature[row_index] = params.temperature
        self.top_k[row_index] = params.top_k
        self.top_p[row_index] = params.top_p
        self.min_p[row_index] = params.min_p
        self.seed[row_index] = params.seed
        self.wants_logprobs[row_index] = params.logprobs is not None
        self.follows_tokens[row_index] = params.follows_tokens
        self.num_top[row_index] = max(params.logprobs or 0, params.prompt_logprobs or 0)
        self.only_scores[row_index] = not params.max_tokens
        # The first sample's prompt is scored for all.
        is_scored = params.prompt_logprobs is not None and not sample
        self.score_from[row_index] = 0 if is_scored else NO_SCORES
        if params.has_beams:
            num_stops = self._num_eos_tokens + len(params.stop_token_ids)
            self.num_beams[row_index] = params.beam_width
            self.num_top[row_index] = num_candidates(params.beam_width, num_stops)
            self.wants_logprobs[row_index] = True
        if request.continuations:
            self._add_continuation(row_index, request.continuations)
        return row_index

    def copy(self, row_index: int, sample: int) -> int:
        """Add a row for another sample of a sequence's request; return its index.

        It has the same tokens and blocks. One sample is drawn from its next logits.
        """
        if not self._holes:
            self._widen_columns()
        new = self._holes.pop()
        for name in _COLUMNS:
            column = getattr(self, name)
            column[new] = column[row_index]
        for tables in self.kv_groups:
            tables.copy(row_index, new)
        num_outputs = self.num_output_tokens[row_index]
        self.outputs[new, :num_outputs] = self.outputs[row_index, :num_outputs]
        self.uid[new] = self._num_added
        self._num_added += 1
        self.sample[new] = sample
        self.num_pending[new] = 1
        self.stop_token_ids[new] = self.stop_token_ids[row_index]
        if row_index in self.continuations:
            self._add_continuation(new, self.continuations[row_index])
        return new

    def _add_continuation(self, row_index: int, continuations: tuple[Continuation, ...]) -> None:
        """Set the texts to score after a prompt: each sample gets the tokens of one text."""
        self.continuations[row_index] = continuations
        self.max_tokens[row_index] = len(continuations[self.sample[row_index]].token_ids)
        self.wants_logprobs[row_index] = self.only_scores[row_index] = True
        self.num_top[row_index] = max(self.num_top[row_index], 1)  # to compare with the greedy one

    def remove(self, row_index: int) -> None:
        """Free a row."""
        self.uid[row_index] = NO_UID
        del self.stop_token_ids[row_index]
        self.continuations.pop(row_index, None)
        self._holes.append(row_index)

    def append_outputs(self, row_indices: Int64s, tokens: "Int64s | int", count: int = 1) -> None:
        """Append tokens to the answers of these sequences. row_indices: each at most once.

        tokens: one for each sequence, or one number for all; appended `count` times.
        """
        lengths = self.num_output_tokens[row_indices]
        longest = int(lengths.max(initial=0)) + count
        if longest > self.outputs.shape[1]:
            self.outputs = widened(self.outputs, longest)
        if count == 1:
            self.outputs[row_indices, lengths] = tokens
        else:
            columns = lengths[:, None] + np.arange(count)
            self.outputs[row_indices[:, None], columns] = np.asarray(tokens)[..., None]
        self.num_output_tokens[row_indices] = lengths + count

    def set_outputs(self, row_index: int, token_ids: list[int]) -> None:
        """Set the tokens of an answer."""
        if len(token_ids) > self.outputs.shape[1]:
            self.outputs = widened(self.outputs, len(token_ids))
        self.outputs[row_index, : len(token_ids)] = token_ids
        self.num_output_tokens[row_index] = len(token_ids)

    def give_tokens(self, row_indices: Int64s) -> None:
        """Replace the tokens just appended by those of a continuation, if one is given.

        After the first token, all others but the last are appended too, to be scored together; the
        last is scored like a drawn token.
        """
        for row_index in row_indices[self.only_scores[row_indices]].tolist():
            if row_index not in self.continuations:
                continue  # its token is dropped
            given = self.continuations[row_index][self.sample[row_index]].token_ids
            newest = int(self.num_output_tokens[row_index]) - 1
            self.outputs[row_index, newest] = given[newest]
            for token in given[1:-1] if newest == 0 else ():
                self.append_outputs(np.array([row_index]), token)
                self.score_from[row_index] = self.num_prompt_tokens[row_index]

    def num_tokens(self, row_indices: Int64s) -> Int64s:
        """Return the number of prompt and generated tokens of each."""
        return self.num_prompt_tokens[row_indices] + self.num_output_tokens[row_indices]

    def last_outputs(self, row_indices: Int64s) -> Int32s:
        """Return the newest generated token of each; any number for one that has none."""
        return self.outputs[row_indices, self.num_output_tokens[row_indices] - 1]

    def _widen_columns(self) -> None:
        old = len(self.uid)
        for name in (*_COLUMNS, "outputs"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
        for tables in self.kv_groups:
            tables.add_rows(old)
        self.uid[old:] = NO_UID
        self._holes = list(range(2 * old - 1, old - 1, -1))


# Element types of the columns.
_COLUMNS = element_types(SequenceTable.__annotations__)


def group_number(group: tuple[int, int]) -> int:
    """Return a group (its window, and its subtree in the window) as one number."""
    window, subtree = group
    return window << 32 | subtree


NO_BLOCK = -1  # freed


class BlockTables:
    """Block tables of all sequences, by row index; arrays grow as needed, so keep no view of them.

    ids: [capacity, width] int32, block `index` of a sequence holds its tokens from
    `index * block_size` on. ends: [capacity] int64, the index after the last block of each.
    firsts: [capacity] int64, the index of the first block that it holds; the ids of freed blocks
    before it, which no later token reads, are `NO_BLOCK`.
    """

    def __init__(self, capacity: int) -> None:
        self.ids: Int32s = np.zeros((capacity, _FIRST_WIDTH), dtype=np.int32)
        self.firsts: Int64s = np.zeros(capacity, dtype=np.int64)
        self.ends: Int64s = np.zeros(capacity, dtype=np.int64)

    def block(self, row_index: int, index: int) -> int:
        """Return the block at an index of a table."""
        return int(self.ids[row_index, index])

    def has(self, row_index: int, index: int) -> bool:
        """Return whether a sequence holds a block at an index of its table."""
        return bool(self.firsts[row_index] <= index < self.ends[row_index])

    def held(self, row_index: int, start: int = 0) -> list[int]:
        """Return the blocks that a sequence holds, from index `start` on."""
        first = max(start, int(self.firsts[row_index]))
        ids: list[int] = self.ids[row_index, first : self.ends[row_index]].tolist()
        return ids

    def set(self, row_index: int, block_ids: list[int], first: int = 0) -> None:
        """Set the blocks of a table, the first of them at index `first`."""
        self.firsts[row_index] = first
        self.ends[row_index] = 0
        self.append(row_index, [NO_BLOCK] * first + block_ids)

    def append(self, row_index: int, block_ids: list[int]) -> None:
        """Append blocks to a table."""
        first = int(self.ends[row_index])
        end = first + len(block_ids)
        if end > self.ids.shape[1]:
            self.ids = widened(self.ids, end)
        self.ids[row_index, first:end] = block_ids
        self.ends[row_index] = end

    def append_one(self, row_index: int, block_id: int) -> None:
        """Append one block to a table."""
        count = self.ends[row_index]
        if count == self.ids.shape[1]:
            self.ids = widened(self.ids, count + 1)
        self.ids[row_index, count] = block_id
        self.ends[row_index] = count + 1

    def replace(self, row_index: int, index: int, block_id: int) -> None:
        """Replace the block at an index of a table."""
        self.ids[row_index, index] = block_id

    def cut(self, row_index: int, end: int) -> None:
        """Truncate a table at index `end`; the caller has counted the references."""
        self.ends[row_index] = end
        self.firsts[row_index] = min(self.firsts[row_index], end)

    def take_before(self, row_index: int, index: int) -> list[int]:
        """Remove the blocks before an index from a table; return them, to be freed."""
        first, index = int(self.firsts[row_index]), min(index, int(self.ends[row_index]))
        if index <= first:
            return []
        taken: list[int] = self.ids[row_index, first:index].tolist()
        self.ids[row_index, first:index] = NO_BLOCK
        self.firsts[row_index] = index
        return taken

    def num_common(self, one: int, two: int) -> int:
        """Return the number of leading blocks that two sequences have in common."""
        count = int(min(self.ends[one], self.ends[two]))
        differ = np.flatnonzero(self.ids[one, :count] != self.ids[two, :count])
        return int(differ[0]) if len(differ) else count

    def copy(self, source: int, target: int) -> None:
        """Copy a table to a row that was a hole."""
        end = self.ends[source]
        self.ids[target, :end] = self.ids[source, :end]
        self.firsts[target], self.ends[target] = self.firsts[source], end

    def gather(self, row_indices: Int64s) -> Int32s:
        """Return copies of tables, [num_sequences, longest] int32, zeros without a block."""
        lengths = self.ends[row_indices]
        width = int(lengths.max(initial=0))
        tables = self.ids[row_indices, :width]
        tables[np.arange(width) >= lengths[:, None]] = 0
        if self.firsts[row_indices].any():
            np.maximum(tables, 0, out=tables)
        return tables

    def add_rows(self, count: int) -> None:
        """Add rows without blocks."""
        self.ids = np.concatenate([self.ids, np.zeros((count, self.ids.shape[1]), dtype=np.int32)])
        self.firsts = np.concatenate([self.firsts, np.zeros(count, dtype=np.int64)])
        self.ends = np.concatenate([self.ends, np.zeros(count, dtype=np.int64)])


def widened(rows: Int32s, width: int) -> Int32s:
    """Return a copy with at least `width` columns, and at least twice as many as before."""
    wider = np.zeros((len(rows), max(width, 2 * rows.shape[1])), dtype=np.int32)
    wider[:, : rows.shape[1]] = rows
    return wider
