"""DecodeBuffers: the inputs of decode steps at fixed addresses, advanced by the device itself."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.kernels.attention import Attention
from pagedrun.kernels.attention_inputs import AttentionInputs, DecodeInputs
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.known_tokens import KnownTokens
from pagedrun.paged.execution.logits.early_stops import EarlyStops
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.logits.sampling_batch import SamplingBatch
from pagedrun.paged.models.forward_batch import NO_SLOT, ForwardBatch, GroupBatch
from pagedrun.paged.models.model import Model
from pagedrun.paged.scheduling.sequence_table import UNKNOWN_TOKEN
from pagedrun.paged.scheduling.step_input import StepInput

_INTEGERS = ("input_ids", "positions", "context_lens", "top_k", "seed", "row", "sample")
_FLOATS = ("temperature", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """Memory for the inputs of steps in which up to `num_rows` sequences decode one token each.

    A row whose context has no tokens is empty: it writes nothing, and what it samples is not
    looked at. integers: [7, num_rows] int64, see `_INTEGERS`. floats: [3, num_rows] float32, see
    `_FLOATS`. block_tables: [num_groups, num_rows, width] int32. rows: [num_rows] int32, 0, 1, 2, …
    context_lens: [num_rows] int32, the integers of that name as attention reads them. early_stops:
    what is forbidden to each row, None in a shape that has no room for it.
    """

    integers: Tensor
    floats: Tensor
    block_tables: Tensor
    rows: Tensor
    context_lens: Tensor
    early_stops: EarlyStops | None
    device: Device

    @classmethod
    def allocate(
        cls, num_rows: int, width: int, num_stop_ids: int, num_groups: int, device: Device
    ) -> "DecodeBuffers":
        """Return buffers in which all rows are empty."""

        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device.torch_device)

        return cls(
            zeros((len(_INTEGERS), num_rows), torch.int64),
            zeros((len(_FLOATS), num_rows), torch.float32),
            zeros((num_groups, num_rows, width), torch.int32),
            torch.arange(num_rows, dtype=torch.int32, device=device.torch_device),
            zeros((num_rows,), torch.int32),
            EarlyStops(
                zeros((num_rows,), torch.int64), zeros((num_rows, num_stop_ids), torch.int64)
            )
            if num_stop_ids
            else None,
            device,
        )

    def load(
        self, step: StepInput, known: KnownTokens | None, early_stops: EarlyStops | None = None
    ) -> None:
        """Put the sequences of a step that only decodes into the first rows, whoever was there.

        `known` are the tokens that only the device has seen; None if the host knows all.
        early_stops: on the host, what is forbidden to the sequences, None if nothing is.
        """
        num_rows, draws = step.num_chunks, step.draws
        integers = np.zeros(self.integers.shape, dtype=np.int64)
        integers[0, :num_rows] = np.maximum(step.input_ids, 0)  # unknown ones come from the device
        integers[1, :num_rows] = step.starts
        integers[2, :num_rows] = step.ends
        for index, name in enumerate(_INTEGERS[3:], start=3):
            integers[index, :num_rows] = getattr(draws, name)
        floats = np.zeros(self.floats.shape, dtype=np.float32)
        for index, name in enumerate(_FLOATS):
            floats[index, :num_rows] = getattr(draws, name)
        place = self.device.place
        self.integers.copy_(place(torch.from_numpy(integers)), non_blocking=True)
        self.floats.copy_(place(torch.from_numpy(floats)), non_blocking=True)
        if self.early_stops is not None:
            self._load_stops(early_stops)
        if known is not None:
            (unknown,) = np.nonzero(step.input_ids == UNKNOWN_TOKEN)
            rows = place(torch.from_numpy(unknown))
            self.integers[0].index_copy_(0, rows, known.chosen(self.device))

    def _load_stops(self, given: EarlyStops | None) -> None:
        assert self.early_stops is not None, "a shape without room for stop tokens"
        self.early_stops.num_missing.zero_()
        if given is not None:
            num_rows = len(given.num_missing)
            place = self.device.place
            self.early_stops.num_missing[:num_rows].copy_(place(given.num_missing))
            self.early_stops.stop_ids[:num_rows].copy_(place(given.stop_ids))

    def load_tables(self, tables: NDArray[np.int32]) -> None:
        """Replace all block tables. tables: [num_groups, num_rows, width]."""
        self.block_tables.copy_(self.device.place(torch.from_numpy(tables)), non_blocking=True)

    @property
    def attentions(self) -> tuple[AttentionInputs, ...]:
        """What attention of each group reads in every step: prepared once, before the first."""
        rows = DecodeInputs(self.rows, self.context_lens)
        return tuple(AttentionInputs(tables, decode=rows) for tables in self.block_tables)

    def step(
        self, model: Model, cache: KVCache, attentions: Seq[Attention], sampler: Sampler
    ) -> Tensor:
        """Compute a step, sample, and advance every row to the next one, all on the device.

        attentions: prepared from the inputs of that name.
        Returns the sampled tokens, [num_rows] int64. Nothing here depends on what is in the
        buffers but values in kernels: a captured step can be replayed for any of it.
        """
        input_ids, positions, lens, top_k, seed, row, sample = self.integers
        temperature, top_p, min_p = self.floats
        size = cache.block_size
        is_used = lens > 0
        index, offsets = (positions // size).unsqueeze(1), positions % size
        groups = []
        for tables, attention in zip(self.block_tables, attentions, strict=True):
            blocks = tables.gather(1, index).squeeze(1)
            slots = torch.where(is_used, blocks.long() * size + offsets, NO_SLOT)
            groups.append(GroupBatch(slots, attention))
        self.context_lens.copy_(lens)
        batch = ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            num_prefill_tokens=0,
            groups=tuple(groups),
            logits_rows=self.rows.long(),
        )
        choice = (temperature, top_k.to(torch.int32), top_p, min_p, seed, row, sample)
        sampling = SamplingBatch(*choice, positions + 1, self.early_stops)
        ids = sampler.choose(model.head(model.hidden(batch, cache)), sampling).ids
        input_ids.copy_(ids.clamp(min=0))
        positions.add_(is_used)
        lens.add_(is_used)
        if self.early_stops is not None:
            self.early_stops.num_missing.sub_(1).clamp_(min=0)
        return ids
