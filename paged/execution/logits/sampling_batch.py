"""SamplingBatch: the parameters of the next tokens' choice, one of each for every row of logits."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedrun.kernels.reference.sampling.sample import GREEDY_BELOW
from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.logits.early_stops import EarlyStops
from pagedrun.paged.execution.parcel import Place, placed_together
from pagedrun.paged.scheduling.step_input import Draws

_DRAWN = ("temperature", "top_k", "top_p", "min_p", "seed", "row", "sample", "position")


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """What `sample` takes besides logits, see `kernels/reference/sampling/sample.py`, and what
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

        return placed_together(device, placed)
