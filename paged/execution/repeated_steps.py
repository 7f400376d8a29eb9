"""Decode steps that repeat the one before with other values: recorded once, then replayed.

On a CPU the host computes, and with few rows it spends more time between kernels than in them.
Consecutive steps of the same rows differ in the contents of their inputs only, so a recording of
one computes the next; see `Backend.record`. Other shapes are computed kernel by kernel.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Int32s
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.ops import Backend, RecordedStep
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.model import ForwardBatch, Model
from pagedrun.paged.scheduling.step_input import StepInput

# A recording takes about three times as long as a step, so rows that change often are not worth
# one.
STEPS_BEFORE = 1
# With more rows Python takes a small part of a step, and a recording keeps the memory of results:
# that of few rows until other shapes need its place, of more until a prompt is computed.
MAX_ROWS, MAX_KEPT_ROWS = 256, 32
TABLE_UNIT = 64  # blocks; tables are as wide for many steps
MAX_SHAPES = 8  # at a time: of several numbers of rows and of drafts
Shape = tuple[torch.Size, ...]


class RepeatedSteps:
    """Logits of decode steps, by replay where the shape has repeated."""

    def __init__(self, model: Model, cache: KVCache, kernels: Backend) -> None:
        self._model = model
        self._cache = cache
        self._kernels = kernels
        self._num_same: Counter[Shape] = Counter()
        self._recordings: dict[Shape, _Recording] = {}
        self._can_record = True
        self.is_usual = True  # the last step took the time that others of its shape will take

    @classmethod
    def of(
        cls, model: Model, cache: KVCache, kernels: Backend, *, eager: bool
    ) -> "RepeatedSteps | None":
        """Return the steps of a model, None if they cannot be recorded, or must not: `eager`."""
        can_record = kernels.records and model.network.is_capturable
        if eager or not can_record:
            return None
        return cls(model, cache, kernels)

    def padded(self, step: StepInput) -> StepInput:
        """Return the step with block tables whose width seldom changes."""
        return replace(step, block_tables=tuple(map(_padded, step.block_tables)))

    def logits(
        self,
        batch: ForwardBatch,
        attention: tuple[AttentionInputs, ...],
        *,
        will_repeat: bool,
        with_states: bool,
    ) -> "Computed":
        """Compute the logits of a batch without scored tokens.

        attention: inputs that the attention of the batch was prepared from. will_repeat: record the
        step at once. with_states: give the hidden states of all tokens, too; steps recorded with
        them keep them. The result is overwritten by the next call.
        """
        self.is_usual = True
        if batch.has_prefill or len(batch.input_ids) > MAX_ROWS or not self._can_record:
            self._forget()
            return self._compute(batch, with_states=with_states)
        inputs = list(_tensors(batch, attention))
        shape = tuple(each.shape for each in inputs)
        if (known := self._recordings.get(shape)) is not None:
            self._num_same[shape] = self._num_same.pop(shape)  # the newest
            for old, new in zip(known.inputs, inputs, strict=True):
                old.copy_(new)
            return known.step.replay()
        self.is_usual = False
        if len(self._num_same) >= MAX_SHAPES and shape not in self._num_same:
            self._drop(next(iter(self._num_same)))  # the oldest
        self._num_same[shape] += 1
        if self._num_same[shape] <= STEPS_BEFORE and not will_repeat:
            return self._compute(batch, with_states=with_states)
        recorded = self._kernels.record(lambda: self._compute(batch, with_states=with_states))
        self._can_record = recorded.can_replay
        if recorded.can_replay:
            self._recordings[shape] = _Recording(inputs, recorded)
        return recorded.result

    def _compute(self, batch: ForwardBatch, *, with_states: bool) -> "Computed":
        if not with_states:
            return Computed(self._model.head(self._model.hidden(batch, self._cache)))
        hidden, states = self._model.hidden_and_states(batch, self._cache)
        return Computed(self._model.head(hidden), states)

    def _forget(self) -> None:
        """Free the memory of results of many rows."""
        for shape in [each for each in self._num_same if each[0].numel() > MAX_KEPT_ROWS]:
            self._drop(shape)

    def _drop(self, shape: Shape) -> None:
        del self._num_same[shape]
        self._recordings.pop(shape, None)


class Computed(NamedTuple):
    """Logits of a batch, [num_logits, vocab_size], and the hidden states of its tokens if an MTP
    module follows."""

    logits: Tensor
    states: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Recording:
    """Recorded step and the tensors that it reads."""

    inputs: list[Tensor]
    step: RecordedStep[Computed]


def _padded(table: Int32s) -> Int32s:
    width = -(-table.shape[1] // TABLE_UNIT) * TABLE_UNIT
    return np.pad(table, ((0, 0), (0, width - table.shape[1])))


def _tensors(batch: ForwardBatch, attention: tuple[AttentionInputs, ...]) -> Iterator[Tensor]:
    """Yield the tensors that differ between decode steps."""
    yield from (batch.input_ids, batch.positions, batch.logits_rows)
    for group, inputs in zip(batch.groups, attention, strict=True):
        rows = inputs.decode
        assert rows is not None, "a batch of generated tokens"
        yield from (group.slots, inputs.block_tables, rows.table_rows, rows.context_lens)
        if rows.groups is not None:
            yield from rows.groups.tensors
