"""Interface of logits processors, and the sampling parameters of a batch."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.reference.sampling import GREEDY_BELOW
from pagedrun.paged.execution.device import Device, Place, transferred
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class EarlyStops:
    """num_missing: [num_rows] int64, tokens that each row gets before it may stop, 0 if it may.
    stop_ids: [num_rows, width] int64, what would stop it; the first ones again fill a row up.
    """

    num_missing: Tensor
    stop_ids: Tensor

    @classmethod
    def of(cls, draws: Draws, eos_token_ids: Seq[int], width: int = 0) -> "EarlyStops | None":
        """Return what is forbidden to some draws, on the host; None if nothing is.

        eos_token_ids: what stops any answer. width: at least so many stop ids a row.
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
    def width(draws: Draws, eos_token_ids: Seq[int]) -> int:
        """Return the most tokens that are forbidden to a draw."""
        own = draws.stop_token_ids.values()
        return max((len(eos_token_ids) + len(each) for each in own), default=0)

    def placed(self, place: Place) -> "EarlyStops":
        """Return the same on a device, as `place` puts it there."""
        return EarlyStops(place(self.num_missing), place(self.stop_ids))

    def forbidden(self, logits: Tensor) -> Tensor:
        """Return logits [num_rows, vocab_size] in which rows that may not stop cannot."""
        is_early = (self.num_missing > 0).unsqueeze(1)
        values = logits.gather(1, self.stop_ids).masked_fill(is_early, -torch.inf)
        return logits.scatter(1, self.stop_ids, values)


_DRAWN = ("temperature", "top_k", "top_p", "min_p", "seed", "row", "sample", "position")


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What `sample` takes besides logits, see `kernels/reference/sampling.py`, and what
    processors of logits take. All [num_rows], on the device.

    temperature, top_p, min_p: float32. top_k: int32. seed, row, sample, position: int64.
    early_stops: what is forbidden to rows. draws: where the tensors come from, None in a captured
    step. filtered: whether a row has top_k, top_p or min_p, and is not greedy.
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
    draws: Draws | None = None
    filtered: bool = True

    @classmethod
    def of(cls, draws: Draws, eos_token_ids: Seq[int], device: Device) -> "SamplingBatch":
        """Return the parameters of a step's draws, in their order. eos_token_ids: the model's."""
        stops = EarlyStops.of(draws, eos_token_ids)
        filtered = draws.has_filters(GREEDY_BELOW)

        def placed(place: Place) -> SamplingBatch:
            tensors = {name: place(torch.from_numpy(getattr(draws, name))) for name in _DRAWN}
            stops_there = stops and stops.placed(place)
            return cls(**tensors, early_stops=stops_there, draws=draws, filtered=filtered)

        return transferred(device, placed)


class LogitsProcessor(Protocol):
    """One rule of how tokens are chosen. What it does to a row must not depend on other rows."""

    @property
    def needs_newest_token(self) -> bool:
        """Whether the host has to see a row's last token before this can work on the next one.

        A step that it applies to is looked at before the next one is scheduled.
        """
        ...

    @property
    def can_be_captured(self) -> bool:
        """Whether it works on tensors of the `SamplingBatch` alone, so that it can be replayed."""
        ...

    def begin(self, request: Request) -> None:
        """Take note of a request whose tokens will be drawn, before the first of them is."""
        ...

    def end(self, row: int) -> None:
        """Forget a request, by its index: no token of it will be drawn any more."""
        ...

    def applies(self, draws: Draws) -> bool:
        """Return whether it changes anything for these draws."""
        ...

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Take note of tokens that the host has seen, in the order of their answers.

        [num_tokens] int64 each: whose answer, which of its samples, the token.
        """
        ...

    def __call__(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Return the logits [num_rows, vocab_size] to go on with.

        One that cannot be captured may write into those given, which are the stage's own. To one
        that can be captured they have to stay as they are. One that computes with logits, rather
        than forbid tokens, makes them float32: `logits.float()` copies them only if they are not.
        """
        ...
