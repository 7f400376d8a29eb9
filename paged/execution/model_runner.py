"""Execution of one step on a model and its KV cache.

Decode graphs replay the part of a step for which they have a graph; the rest is launched kernel by
kernel. After an out-of-memory error a step is computed in pieces of half the size.
"""

import functools
import sys
from dataclasses import dataclass
from traceback import clear_frames

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.attention_inputs import AttentionInputs, DecodeInputs
from pagedrun.kernels.op_values import TokenLogprobs
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.decode_buffers import GraphShape
from pagedrun.paged.execution.decode_graphs import DecodeGraphs
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.forward_batch import (
    attention_shapes,
    batch_order,
    decode_batch,
    forward_batch,
)
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.prefix_sharing import PrefixSharing
from pagedrun.paged.execution.repeated_steps import RepeatedSteps
from pagedrun.paged.execution.step_result import (
    InFlight,
    KnownTokens,
    StepResult,
    TokenStates,
    joined,
)
from pagedrun.paged.models.model import PIECE_TOKENS, ForwardBatch, Model
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.speculation.mtp_drafts import NO_DRAFT, TokensAhead
from pagedrun.paged.values.errors import EngineError, option

MAX_SCORED_BYTES = 64 * 2**20  # size of the logits of one scoring pass


@dataclass(slots=True)
class AttentionReads:
    """Bytes of keys and values read by attention so far."""

    num_bytes: int = 0
    num_bytes_without_sharing: int = 0  # if each row had read its own prefix


class ModelRunner:
    """Transfers the blocks of a step, then computes it.

    `shared_prefix_attention`: rows read the partitions that they share together. `graphs`: replay
    decode steps; `repeated`: replay those that repeat the step before. None of both computes all
    steps kernel by kernel.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        sampler: Sampler,
        device: Device,
        *,
        shared_prefix_attention: bool = True,
        graphs: DecodeGraphs | None = None,
        repeated: RepeatedSteps | None = None,
    ) -> None:
        self._model = model
        self.keeps_states = False  # results have hidden states for the MTP module
        self._cache = cache
        self._sampler = sampler
        self._device = device
        self._sharing = PrefixSharing(share=shared_prefix_attention)
        self._graphs = graphs
        self._repeated = repeated
        # Of a piece; lowered after an out-of-memory error.
        self._is_by_layer = model.streamed is not None or cache.is_transient
        self._max_tokens = PIECE_TOKENS if self._is_by_layer else sys.maxsize
        self._bytes_read = model.network.bytes_read(cache.specs)
        self.reads = AttentionReads()

    @torch.inference_mode()
    def run(self, step: StepInput, before: InFlight | None = None) -> StepResult:
        """Return the sampled tokens, one for each pending sample of each chunk that samples, in
        order, and the requested log-probabilities.

        `before`: the step whose tokens are inputs of this one, None if the host knows all inputs.
        """
        self._cache.transfer(step.transfers)
        return self._run(step, before)

    def _run(self, step: StepInput, before: InFlight | None) -> StepResult:
        """Compute a step, in pieces if memory requires it; those that are computed are not computed
        again."""
        if self._is_by_layer or step.num_tokens <= self._max_tokens:
            try:
                return self._compute(step, before)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._halve_after_oom(min(step.num_tokens, self._max_tokens), error)
        pieces = [step] if self._is_by_layer else step.pieces(self._max_tokens)
        results = [self._run(piece, before) for piece in pieces]
        return functools.reduce(StepResult.followed_by, results)

    def _halve_after_oom(self, num_tokens: int, error: Exception) -> None:
        """Limit further pieces to half the number of tokens that ran out of memory.

        Raises `EngineError` if the step has a single token.
        """
        if num_tokens == 1:
            raise EngineError(
                "out of memory with a single token in the step; free some memory, or make the "
                f"pool smaller with {option('kv_cache_memory_bytes')} or "
                f"{option('gpu_memory_utilization')}"
            ) from error
        self._max_tokens = num_tokens // 2
        if self._graphs is not None:  # their memory is held by their owner
            self._graphs.release()
            self._graphs = None
        self._repeated = None
        # Frames of the failed step keep its tensors alive while the error is handled.
        clear_frames(error.__traceback__)
        self._device.release_unused_memory()

    def _compute(self, step: StepInput, before: InFlight | None) -> StepResult:
        replayed = None if self._graphs is None else self._graphs.run(step, before)
        if replayed is None:
            return self._launch(step, before)
        self._note_reads(replayed.read)
        if replayed.rest is None:
            return StepResult(replayed.ids, order=replayed.rows)
        rest = self._launch(replayed.rest, before)
        order = np.empty(len(step.draws), dtype=np.int64)
        is_replayed = ~np.isin(step.uids, replayed.rest.uids)[step.draws.chunk]
        order[is_replayed] = replayed.rows
        order[~is_replayed] = len(replayed.ids) + np.arange(len(rest.ids))
        return rest._replace(ids=torch.cat([replayed.ids, rest.ids]), order=order)

    def _launch(self, step: StepInput, before: InFlight | None) -> StepResult:
        """Compute a step kernel by kernel.

        A large one layer by layer, if weights are read once for all of its pieces, or keys and
        values are kept for one layer.
        """
        if not self._is_by_layer or step.num_tokens <= self._max_tokens:
            return self._launch_piece(step, before)
        pieces = step.pieces(self._max_tokens)
        batches = [self._batch(piece, before)[0] for piece in pieces]
        hidden = self._model.hidden_by_layer(batches, self._cache)
        return functools.reduce(StepResult.followed_by, map(self._drawn, hidden, pieces))

    def _launch_piece(self, piece: StepInput, before: InFlight | None) -> StepResult:
        repeated = self._repeated
        if repeated is not None:
            piece = repeated.padded(piece)
        batch, attention = self._batch(piece, before)
        if repeated is not None and not len(piece.targets):
            logits, states = repeated.logits(
                batch,
                attention,
                will_repeat=bool(piece.drafts),
                with_states=self.keeps_states,
            )
            kept = states if self.keeps_states else None
            return _with_states(self._sampler.sample(logits, piece), piece, batch, kept)
        if not self.keeps_states:
            return self._drawn(self._model.hidden(batch, self._cache), piece)
        hidden, states = self._model.hidden_and_states(batch, self._cache)
        return _with_states(self._drawn(hidden, piece), piece, batch, states)

    def _batch(
        self, piece: StepInput, before: InFlight | None
    ) -> tuple[ForwardBatch, tuple[AttentionInputs, ...]]:
        cache, shapes = self._cache, attention_shapes(self._model, self._cache)
        known = KnownTokens.of(piece, before)
        batch, attention = forward_batch(
            piece, cache.block_size, cache.specs, shapes, self._sharing, self._device, known
        )
        self._note_reads(attention[0])
        return batch, attention

    def _drawn(self, hidden: Tensor, piece: StepInput) -> StepResult:
        """Return tokens and scores of a piece; hidden: of its tokens with logits."""
        scores = self._scores(hidden[piece.num_samples :], piece)
        drawn = self._sampler.sample(self._model.head(hidden[: piece.num_samples]), piece)
        return drawn._replace(scores=scores)

    def _scores(self, hidden: Tensor, step: StepInput) -> TokenLogprobs | None:
        """Return the log-probabilities of the targets of a step; hidden: [num_scored, hidden_size].

        Their logits are computed a few at a time.
        """
        row_bytes = self._model.network.vocab_size * hidden.element_size()
        size = max(MAX_SCORED_BYTES // row_bytes, 1)
        parts: list[TokenLogprobs | None] = []
        for first in range(0, len(step.targets), size):
            targets = self._device.place(torch.from_numpy(step.targets[first : first + size]))
            rows = torch.arange(len(targets), device=targets.device)
            logits = self._model.head(hidden[first : first + size])
            parts.append(self._sampler.score(logits, rows, targets, step.num_top))
        return joined(parts)

    @torch.inference_mode()
    def follow(self, result: StepResult, next_ids: Int64s) -> None:
        """Write the keys and values of the MTP module for the tokens of the last step; next_ids:
        [num_tokens] int64, the tokens behind them.

        Without enough memory later results have no states: drafts are not worth an error.
        """
        end = 0
        try:
            for batch, order, states in result.states:
                end, start = end + len(order), end
                ids = self._device.place(torch.from_numpy(next_ids[start:end][order]))
                self._model.follow(states, ids, batch, self._cache)
        except (RuntimeError, MemoryError) as error:
            self._end_predictions(error)

    @torch.inference_mode()
    def predict(self, result: StepResult, ahead: TokensAhead) -> Int64s:
        """Return the tokens that the MTP module predicts behind the last step, which it has
        followed: [num_sequences, ahead.most] int64, -1 where a sequence has no room for another, or
        memory is missing.
        """
        drafts = np.full((len(ahead.tokens), ahead.most), NO_DRAFT)
        chosen = np.arange(len(ahead.tokens))
        shapes = attention_shapes(self._model, self._cache)
        place = self._device.place
        try:
            states = _states_of(result, ahead.tokens, self._device)
            ids = place(torch.from_numpy(ahead.newest))
            for count in range(ahead.most):
                batch = decode_batch(
                    [each[chosen] for each in ahead.block_tables],
                    ahead.positions[chosen] + count - 1,
                    self._cache.block_size,
                    shapes,
                    self._device,
                    is_stored=not count,
                )
                hidden, states = self._model.predict(states, ids, batch, self._cache)
                ids = self._model.head(hidden).argmax(dim=1)
                drafts[chosen, count] = self._device.to_host(ids).wait().numpy()
                has_room = ahead.num_free[chosen] > count
                if not has_room.any():
                    break
                chosen, kept = chosen[has_room], place(torch.from_numpy(np.flatnonzero(has_room)))
                states, ids = states[kept], ids[kept]
        except (RuntimeError, MemoryError) as error:
            self._end_predictions(error)
        return drafts

    def _end_predictions(self, error: Exception) -> None:
        """Do without the MTP module from now on. Raises the error if memory was not missing."""
        if not is_out_of_memory(error):
            raise error
        self.keeps_states = False

    @property
    def is_usual(self) -> bool:
        """True if the last step took the time that others of its shape will take."""
        return self._repeated is None or self._repeated.is_usual

    @property
    def captured_shapes(self) -> list[GraphShape]:
        """Shapes of captured decode steps."""
        return self._graphs.shapes if self._graphs is not None else []

    def _note_reads(self, read: AttentionInputs | DecodeInputs) -> None:
        for window, num_bytes in self._bytes_read.items():
            tokens, without_sharing = read.tokens_read(window)
            self.reads.num_bytes += tokens * num_bytes
            self.reads.num_bytes_without_sharing += without_sharing * num_bytes


def _with_states(
    result: StepResult, piece: StepInput, batch: ForwardBatch, states: Tensor | None
) -> StepResult:
    if states is None:
        return result
    return result._replace(states=(TokenStates(batch, batch_order(piece), states),))


def _states_of(result: StepResult, tokens: Int64s, device: Device) -> Tensor:
    """Return the hidden states of tokens of a step; tokens: [num_tokens] int64, their indices."""
    orders, end = [], 0
    for _, order, _ in result.states:
        orders.append(np.argsort(order) + end)
        end += len(order)
    states = [each.states for each in result.states]
    rows = device.place(torch.from_numpy(np.concatenate(orders)[tokens]))
    return (torch.cat(states) if len(states) > 1 else states[0])[rows]


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of a step says that memory was missing."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "DefaultCPUAllocator" in str(error)  # torch has no error class for host memory
