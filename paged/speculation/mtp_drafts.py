"""Drafts of a module for multi-token prediction (MTP), which models of some families have.

Behind each step the module gets the hidden states of its tokens and the tokens behind them, and
writes its own keys and values of each token, prompts included, in the same blocks. The rest of its
layer is computed where it predicts: for a token whose next token is the newest of an answer
it predicts the one after that, and from its own results further ones.

Keys and values of the last token of a shared block follow the next token of the row that computed
the block. Those of rejected drafts are written again, as in other layers. Neither can change an
answer: the module decides about drafts alone.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pagedrun.kernels.array_types import Int32s, Int64s
from pagedrun.paged.scheduling.scheduler import Scheduler
from pagedrun.paged.scheduling.sequence import Sequence
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.speculation.drafts import MTP, Proposal, can_draft

NO_DRAFT = -1
LIKE_MATCHED = 8  # tokens: before any is known, chances are those of so long a match
NOWHERE = -1  # row index of a sequence that has ended


@dataclass(frozen=True, slots=True)
class TokensAhead:
    """Sequences whose next tokens are to be predicted, up to `most` of each.

    All of the arrays [num_sequences] int64. uids: of the sequences. tokens: index in the step of
    the token before the newest one. newest: that token; positions: its position. num_free: tokens
    from it on for which the sequence has blocks. block_tables: of each group of layers,
    [num_sequences, width].
    """

    uids: Int64s
    tokens: Int64s
    newest: Int64s
    positions: Int64s
    num_free: Int64s
    block_tables: tuple[Int32s, ...]
    most: int


class FollowedStep:
    """Tokens of a step that has been read and verified, and those behind them."""

    def __init__(self, step: StepInput, scheduler: Scheduler) -> None:
        self._step = step
        self._block_size = scheduler.pool.block_size
        self._table = scheduler.table
        self._sequences = {int(self._table.uid[each.row_index]): each for each in scheduler.running}
        self._last = np.cumsum(step.ends - step.starts) - 1  # token of each chunk
        self._row_indices = np.full(step.num_chunks, NOWHERE)
        for chunk, uid in enumerate(step.uids.tolist()):
            if uid in self._sequences:
                self._row_indices[chunk] = self._sequences[uid].row_index
        self._chunks_of_drafts: dict[int, Int64s] = {}
        for each in step.drafts:
            if self._table.uid[each.row_index] == each.uid:
                draws = np.arange(len(each.tokens)) + each.first_draw
                chunks = self._chunks_of_drafts[each.uid] = step.draws.chunk[draws]
                self._row_indices[chunks] = each.row_index

    @cached_property
    def next_ids(self) -> Int64s:
        """The token behind each token of the step, [num_tokens] int64.

        A token without a next one, since its sequence has ended, stands for it itself.
        """
        step, table = self._step, self._table
        next_ids = np.append(step.input_ids[1:], 0)
        next_ids[self._last] = step.input_ids[self._last]
        rows = self._row_indices
        generated = step.ends - step.num_prompt_tokens  # index in the answer of the next token
        is_known = (rows != NOWHERE) & (generated >= 0)
        is_known &= generated < table.num_output_tokens[rows]
        found = table.outputs[rows[is_known], generated[is_known]]
        next_ids[self._last[is_known]] = np.where(found < 0, next_ids[self._last[is_known]], found)
        for chunk in np.flatnonzero((rows != NOWHERE) & (generated < 0)).tolist():
            prompt = self._sequences[int(step.uids[chunk])].request.prompt_token_ids
            next_ids[self._last[chunk]] = prompt[step.ends[chunk]]
        return next_ids

    def ahead(self, most: int) -> TokensAhead:
        """Return the sequences of the step to predict up to `most` tokens of."""
        step, table = self._step, self._table
        found = [
            (uid, chunk, self._sequences[uid])
            for chunk, uid in enumerate(step.uids.tolist())
            if uid in self._sequences and self._is_drafted(self._sequences[uid])
        ]
        tokens = np.array(
            [self._token_before_newest(chunk, uid) for uid, chunk, _ in found], dtype=np.int64
        )
        row_indices = np.array([each.row_index for _, _, each in found], dtype=np.int64)
        positions = table.num_computed_tokens[row_indices]
        ends = np.min([each.ends[row_indices] for each in table.kv_groups], axis=0)
        return TokensAhead(
            np.array([uid for uid, _, _ in found], dtype=np.int64),
            tokens,
            self.next_ids[tokens],
            positions,
            ends * self._block_size - positions,
            tuple(each.gather(row_indices) for each in table.kv_groups),
            most,
        )

    def _is_drafted(self, sequence: Sequence) -> bool:
        """Return whether all tokens of a sequence but the newest one are computed, and drafts may
        follow that."""
        num_computed = sequence.num_computed_tokens
        return sequence.num_prompt_tokens <= num_computed == sequence.num_tokens - 1 and can_draft(
            sequence.request
        )

    def _token_before_newest(self, chunk: int, uid: int) -> int:
        num_right = int(self._table.num_computed_tokens[self._row_indices[chunk]])
        num_right -= int(self._step.ends[chunk])
        if num_right:
            chunk = int(self._chunks_of_drafts[uid][num_right - 1])
        return int(self._last[chunk])


class MtpDrafts:
    """Predicted tokens of the sequences of the last step, by uid."""

    def __init__(self) -> None:
        self._by_uid: dict[int, list[int]] = {}

    def note(self, uids: Int64s, drafts: Int64s) -> None:
        """Replace the tokens; drafts: [num_sequences, most] int64, with `NO_DRAFT` behind them."""
        each = zip(uids.tolist(), drafts.tolist(), strict=True)
        self._by_uid = {uid: [t for t in tokens if t != NO_DRAFT] for uid, tokens in each}

    def clear(self) -> None:
        """Forget all tokens."""
        self._by_uid.clear()

    def of(self, uid: int) -> list[int]:
        """Return the tokens of a sequence."""
        return self._by_uid.get(uid, [])


class MtpDrafter:
    """Drafts of the MTP module for one sequence."""

    def __init__(self, drafts: MtpDrafts, uid: int) -> None:
        self._drafts = drafts
        self._uid = uid

    def append(self, tokens: Seq[int]) -> None:
        """Do nothing: the module has seen the tokens."""

    def propose(self, most: int) -> Proposal | None:
        """Return the tokens that were predicted behind the step."""
        tokens = self._drafts.of(self._uid)[:most]
        return Proposal(tokens, MTP, LIKE_MATCHED) if tokens else None
