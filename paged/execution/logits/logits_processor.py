"""Interface of logits processors, and the sampling parameters of a batch."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Int64s
from pagedrun.kernels.reference.sampling import GREEDY_BELOW
from pagedrun.paged.execution.device import Device, Place, transferred
from pagedrun.paged.scheduling.step_input import SamplingMetadata
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class EarlyStops:
    """Stop tokens that are masked in rows below their minimum length.

    num_missing: [num_rows] int64, tokens to generate before the row may stop, 0 if it may.
    stop_ids: [num_rows, width] int64, its stop tokens, repeated from the first one to fill a row.
    """

    num_missing: Tensor
    stop_ids: Tensor

    @classmethod
    def of(
        cls, draws: SamplingMetadata, eos_token_ids: Seq[int], width: int = 0
    ) -> "EarlyStops | None":
        """Return the stop tokens of draws that may not stop, on the host; None if all may.

        eos_token_ids: the stop tokens of all rows. width: the minimum number of columns.
        """
        stops = {draw: (*eos_token_ids, *own) for draw, own in draws.stop_token_ids.items()}
        width = max(width, cls.width(draws, eos_token_ids))
        if not any(stops.values()):
            return None
        missing = np.zeros(len(draws), dtype=np.int64)
        ids = np.zeros((len(draws), width), dtype=np.int64)
        for draw, own in stops.items():
            if own:
                missing[draw] = draws.num_missing[draw]
                ids[draw] = np.resize(own, width)
        return cls(torch.from_numpy(missing), torch.from_numpy(ids))

    @staticmethod
    def width(draws: SamplingMetadata, eos_token_ids: Seq[int]) -> int:
        """Return the largest number of stop tokens of a draw that may not stop."""
        own = draws.stop_token_ids.values()
        return max((len(eos_token_ids) + len(each) for each in own), default=0)

    def placed(self, place: Place) -> "EarlyStops":
        """Return a copy with its tensors transferred by `place`."""
        return EarlyStops(place(self.num_missing), place(self.stop_ids))

    def forbidden(self, logits: Tensor) -> Tensor:
        """Return logits [num_rows, vocab_size] with the stop tokens of early rows masked."""
        is_early = (self.num_missing > 0).unsqueeze(1)
        values = logits.gather(1, self.stop_ids).masked_fill(is_early, -torch.inf)
        return logits.scatter(1, self.stop_ids, values)


_DRAWN = ("temperature", "top_k", "top_p", "min_p", "seed", "row", "sample", "position")


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of a batch: arguments of logits processors and of the `sample` kernel
    (`kernels/reference/sampling.py`).

    temperature, top_p, min_p: [num_rows] float32. top_k: int32. seed, row, sample, position: int64.
    All are on the device. early_stops: masked stop tokens, None without. draws: the source of the
    tensors, None in a captured step. filtered: a row that is not greedy has top_k, top_p or min_p.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    row: Tensor
    sample: Tensor
    position: Tensor
    early_stops: EarlyStops | None = None
    draws: SamplingMetadata | None = None
    filtered: bool = True

    @classmethod
    def of(
        cls, draws: SamplingMetadata, eos_token_ids: Seq[int], device: Device
    ) -> "SamplingBatch":
        """Return the parameters of the draws of a step, in order; eos_token_ids: of the model."""
        stops = EarlyStops.of(draws, eos_token_ids)
        filtered = draws.has_filters(GREEDY_BELOW)

        def placed(place: Place) -> SamplingBatch:
            tensors = {name: place(torch.from_numpy(getattr(draws, name))) for name in _DRAWN}
            stops_there = stops and stops.placed(place)
            return cls(**tensors, early_stops=stops_there, draws=draws, filtered=filtered)

        return transferred(device, placed)


class LogitsProcessor:
    """Base class of rules for the choice of tokens.

    The effect on a row must not depend on other rows. `needs_newest_token`: the host must see the
    last token of a row before the next one is computed, so that steps to which the processor
    applies are read back before the next step is scheduled. `can_be_captured`: it uses nothing but
    the tensors of the `SamplingBatch`, and can be replayed in a decode graph.
    """

    needs_newest_token = False
    can_be_captured = False

    def begin(self, request: Request) -> None:
        """Add a request, before its first token is drawn."""

    def end(self, row: int) -> None:
        """Remove a request, by its index."""

    def applies(self, draws: SamplingMetadata) -> bool:
        """Return whether these draws are affected."""
        raise NotImplementedError

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Take tokens that the host has read back, in the order of their answers.

        Called if `needs_newest_token`. [num_tokens] int64 each: row, sample and token.
        """

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Return the processed logits, [num_rows, vocab_size].

        A processor that cannot be captured may write into its argument; one that can must not.
        One that adds to logits, rather than mask tokens, first makes them float32: `logits.float()`
        copies only other dtypes.
        """
        raise NotImplementedError


T = TypeVar("T")


class PerRequestProcessor(LogitsProcessor, Generic[T]):
    """Base class of processors that keep a value for each request that uses them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._by_row: dict[int, T] = {}

    def requested(self, request: Request) -> T | None:
        """Return the value to keep, None for a request that does not use the processor."""
        raise NotImplementedError

    def begin(self, request: Request) -> None:
        """Keep the value of a request."""
        self.end(request.index)
        value = self.requested(request)
        if value is not None:
            self._by_row[request.index] = value

    def end(self, row: int) -> None:
        """Drop the value of a request."""
        self._by_row.pop(row, None)

    def applies(self, draws: SamplingMetadata) -> bool:
        """Return whether a request of these draws has a value."""
        return bool(self._by_row) and not self._by_row.keys().isdisjoint(draws.row.tolist())

    def found(self, rows: Int64s) -> Iterator[tuple[int, T]]:
        """Yield position and value of each of these rows, [num_rows] int64, that has a value."""
        if not self._by_row:
            return
        for position, row in enumerate(rows.tolist()):
            value = self._by_row.get(row)
            if value is not None:
                yield position, value
