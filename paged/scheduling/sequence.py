"""Sequence: one sample of a request in flight, with its tokens and blocks."""

from copy import copy
from typing import overload

from pagedrun.paged.scheduling.sequence_table import NO_STATE, UNKNOWN_TOKEN, SequenceTable
from pagedrun.paged.text.incremental_text import IncrementalText
from pagedrun.paged.values.planned_request import BlockKey, PlannedRequest
from pagedrun.paged.values.request import Request


class _Column:
    """Integer attribute that is stored in the table column of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, sequence: None, owner: type) -> "_Column": ...

    @overload
    def __get__(self, sequence: "Sequence", owner: type) -> int: ...

    def __get__(self, sequence: "Sequence | None", owner: type) -> "int | _Column":
        if sequence is None:
            return self
        return int(getattr(sequence.table, self._name)[sequence.row_index])

    def __set__(self, sequence: "Sequence", value: int) -> None:
        getattr(sequence.table, self._name)[sequence.row_index] = value


class Sequence:
    """State of one sample; the numbers that every step reads are row `row_index` of the `table`.

    Tokens `[0, num_computed_tokens)` need no further forward pass, and tokens
    `[0, num_stored_tokens)` have their keys and values in the cache. The two differ only if
    logits of stored tokens are needed: a prompt found whole in the cache still computes its last
    token, without writing it, and a prompt to be scored computes all tokens from `score_from` on,
    the first position whose next token has no score yet. `num_tokens_ever_computed` distinguishes
    recomputed tokens from new ones.

    The first `num_shared_tokens` prompt tokens are shared with another row or sample, and attention
    reads the first `num_read_once_tokens` for all rows together. The next row of the plan needs
    the first `num_keep_blocks` blocks again; later ones diverge at `branch_point`. With recurrent
    layers it begins with the state after `num_state_blocks` blocks, and later rows with those at
    its `state_points`. Answer lengths are predicted from rows of the same `group`.

    `pending_samples` are the samples to draw from the next logits: all `n` of a request while its
    prompt is computed, then its own. `host_blocks` maps table indices to host blocks while it is
    swapped out; `pinned_keys` are kept in the pool while it waits. Its first `num_hit_blocks`
    blocks were found in the cache, and the first `num_published_blocks` can be found by others.
    `num_cached_tokens` are the prompt tokens taken from the cache at its first admission. The first
    `num_begun_tokens` of its answer were drawn by an earlier run and are computed like those of a
    preempted sequence. `text` is the end of the answer's text, for stop strings.
    """

    __slots__ = (
        "_pending_samples",
        "block_keys",
        "branch_point",
        "host_blocks",
        "num_begun_tokens",
        "num_cached_tokens",
        "num_hit_blocks",
        "num_keep_blocks",
        "num_preemptions",
        "num_published_blocks",
        "num_state_blocks",
        "pinned_keys",
        "request",
        "row_index",
        "sample_index",
        "state_points",
        "table",
        "text",
    )

    num_prompt_tokens = _Column()
    num_output_tokens = _Column()
    num_computed_tokens = _Column()
    num_stored_tokens = _Column()
    num_tokens_ever_computed = _Column()
    num_shared_tokens = _Column()
    num_read_once_tokens = _Column()
    group = _Column()
    score_from = _Column()
    num_beams = _Column()

    def __init__(
        self, table: SequenceTable, planned: PlannedRequest, pending_samples: tuple[int, ...]
    ) -> None:
        """Add a row to the table, with no blocks and nothing computed."""
        self.table = table
        self.request: Request = planned.request
        self.sample_index = pending_samples[0]
        self._pending_samples = pending_samples
        self.row_index = table.add(
            planned.request, planned.group, self.sample_index, len(pending_samples)
        )
        self.block_keys: list[BlockKey] = list(planned.block_keys)
        self.num_shared_tokens = planned.num_shared_tokens
        self.num_read_once_tokens = planned.num_read_once_tokens
        self.num_keep_blocks = planned.num_keep_blocks
        self.branch_point = planned.branch_point
        self.num_state_blocks = planned.num_state_blocks
        self.state_points = planned.state_points
        self.host_blocks: dict[int, int] = {}
        self.pinned_keys: list[BlockKey] = []
        self.num_hit_blocks = 0
        self.num_published_blocks = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.text: IncrementalText | None = None
        self.num_begun_tokens = len(planned.begun_token_ids)
        if planned.begun_token_ids:
            self.output_token_ids = list(planned.begun_token_ids)

    @classmethod
    def start(cls, table: SequenceTable, planned: PlannedRequest) -> "Sequence":
        """Return the sequence that computes the prompt for all samples to draw."""
        return cls(table, planned, planned.samples)

    @property
    def pending_samples(self) -> tuple[int, ...]:
        """The samples to draw from the next logits."""
        return self._pending_samples

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def max_num_tokens(self) -> int:
        """Tokens whose keys and values may have to be stored; the last one's never are."""
        return self.request.max_num_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Generated tokens; the last may be `UNKNOWN_TOKEN`, since the next step can be scheduled
        and computed before the host has read it."""
        ids: list[int] = self.table.outputs[self.row_index, : self.num_output_tokens].tolist()
        return ids

    @output_token_ids.setter
    def output_token_ids(self, token_ids: list[int]) -> None:
        self.table.set_outputs(self.row_index, token_ids)

    def set_newest_token(self, token_id: int) -> None:
        """Set the last generated token, which was unknown."""
        self.table.outputs[self.row_index, self.num_output_tokens - 1] = token_id

    @property
    def num_known_outputs(self) -> int:
        """Number of generated tokens that the host has read: all, or all but the last."""
        count = self.num_output_tokens
        is_unknown = count and self.table.outputs[self.row_index, count - 1] == UNKNOWN_TOKEN
        return count - int(is_unknown)

    def known_outputs(self, start: int = 0) -> list[int]:
        """Return the generated tokens from `start` on that the host has read."""
        outputs = self.table.outputs[self.row_index, max(start, 0) : self.num_known_outputs]
        ids: list[int] = outputs.tolist()
        return ids

    @property
    def only_scores(self) -> bool:
        """True if its tokens are given to be scored, or dropped: see `SequenceTable`."""
        return bool(self.table.only_scores[self.row_index])

    @property
    def is_forked(self) -> bool:
        """True if the samples of the request have diverged."""
        return self.num_output_tokens > self.num_begun_tokens

    @property
    def is_first(self) -> bool:
        """True for the first sample of its request."""
        return self.sample_index == 0

    @property
    def num_blocks(self) -> int:
        """Blocks of the first group's table."""
        return int(self.table.kv_groups[0].ends[self.row_index])

    @property
    def block_table(self) -> list[int]:
        """The first group's blocks that hold the tokens, in their order."""
        return self.table.kv_groups[0].held(self.row_index)

    @block_table.setter
    def block_table(self, block_ids: list[int]) -> None:
        self.table.kv_groups[0].set(self.row_index, block_ids)

    def blocks_from(self, index: int) -> list[int]:
        """Return the block table from `index` on."""
        return self.table.kv_groups[0].held(self.row_index, index)

    def block(self, index: int) -> int:
        """Return the block at an index of the block table."""
        return self.table.kv_groups[0].block(self.row_index, index)

    def token_ids(self, start: int, end: int) -> list[int]:
        """Return the ids at positions `[start, end)`."""
        prompt = self.request.prompt_token_ids
        split = len(prompt)
        if end <= split:
            return list(prompt[start:end])
        first = max(start - split, 0)
        generated: list[int] = self.table.outputs[self.row_index, first : end - split].tolist()
        return [*prompt[start:split], *generated] if start < split else generated

    def go_back_to(self, num_tokens: int, num_blocks: int) -> None:
        """Drop the stored tokens after `num_tokens`, and the blocks after `num_blocks`."""
        self.num_computed_tokens = self.num_stored_tokens = num_tokens
        for tables in self.table.kv_groups:
            tables.cut(self.row_index, num_blocks)

    def truncate(self, num_output_tokens: int) -> None:
        """Drop the generated tokens after `num_output_tokens`."""
        self.num_output_tokens = num_output_tokens

    def forget_blocks(self) -> None:
        """Reset the sequence to one without stored keys and values."""
        for tables in self.table.kv_groups:
            tables.set(self.row_index, [])
        self.table.state_slot[self.row_index] = NO_STATE
        self.num_computed_tokens = 0
        self.num_stored_tokens = 0
        self.num_hit_blocks = 0
        self.num_published_blocks = 0

    def fork(self) -> "list[Sequence]":
        """Return a sibling for each pending sample but the first, which stays this one's own.

        The siblings hold the same blocks; the caller counts the references.
        """
        siblings = [self.branch(index) for index in self._pending_samples[1:]]
        self._pending_samples = self._pending_samples[:1]
        self.table.num_pending[self.row_index] = 1
        return siblings

    def branch(self, sample_index: int) -> "Sequence":
        """Return a sibling with the same tokens and blocks; the caller counts the references."""
        sibling = copy(self)
        sibling.row_index = self.table.copy(self.row_index, sample_index)
        sibling.sample_index = sample_index
        sibling._pending_samples = (sample_index,)
        sibling.block_keys = list(self.block_keys)
        sibling.host_blocks, sibling.pinned_keys = {}, []
        sibling.num_preemptions = 0
        sibling.text = None
        return sibling
