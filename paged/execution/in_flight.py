"""InFlight: a step that was launched and whose tokens the host has not seen yet."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device
from pagedrun.paged.execution.host_copy import HostCopy
from pagedrun.paged.execution.host_logprobs import FoundLogprob, HostLogprobs
from pagedrun.paged.execution.step_result import StepResult
from pagedrun.paged.scheduling.sequence_table import Int64s, SequenceTable
from pagedrun.paged.scheduling.step_input import StepInput


@dataclass(frozen=True, slots=True)
class InFlight:
    """The tokens that a step samples, and whose they are.

    ids: int64 on the device, `NO_TOKEN` where the logits hold no choice. copy: the same on their
    way to the host. places, uids: [num_sampled] int64, the sequence that each token is of.
    positions: [num_sampled] int64, where it goes among the sequence's generated tokens. step: what
    was computed. logprobs: of those of its draws that want them. scores: of its targets. order:
    [num_sampled] int64, which of `ids` each token is, None: they are in order.
    """

    ids: Tensor
    copy: HostCopy
    places: Int64s
    uids: Int64s
    positions: Int64s
    step: StepInput
    logprobs: HostLogprobs | None
    scores: HostLogprobs | None
    order: Int64s | None = None

    @classmethod
    def launched(
        cls,
        result: StepResult,
        step: StepInput,
        table: SequenceTable,
        grown: Int64s,
        device: Device,
    ) -> "InFlight":
        """Return a step whose tokens have just been appended to the sequences at `grown`."""
        return cls(
            ids=result.ids,
            copy=device.to_host(result.ids),
            places=grown,
            uids=table.uid[grown],
            positions=step.draws.position - table.num_prompt_tokens[grown],
            step=step,
            logprobs=HostLogprobs.of(result.logprobs, device),
            scores=HostLogprobs.of(result.scores, device),
            order=result.order,
        )

    def places_of(self, draws: Int64s) -> Int64s:
        """Return where in `ids` the tokens of some draws are."""
        return draws if self.order is None else self.order[draws]

    def scored(self) -> Iterator[tuple[int, int, int, FoundLogprob]]:
        """Yield row, sample and token of each target, and how likely it is, when that is there."""
        if self.scores is None:
            return
        counts = self.step.num_scored
        rows, samples = (np.repeat(each, counts) for each in (self.step.rows, self.step.sample))
        yield from zip(
            rows.tolist(),
            samples.tolist(),
            self.step.targets.tolist(),
            self.scores.wait(),
            strict=True,
        )

    def drawn(self, chosen: NDArray[np.bool_]) -> Iterator[tuple[int, FoundLogprob]]:
        """Yield which draw it is and how likely its token, when it is there: of the chosen draws,
        those whose log-probabilities are asked for.

        chosen: [num_draws].
        """
        if self.logprobs is not None:
            wants = self.step.draws.wants_logprobs
            draws = np.flatnonzero(wants & chosen).tolist()
            yield from zip(draws, self.logprobs.wait(chosen[wants]), strict=True)

    def top_of(self, chosen: NDArray[np.bool_]) -> tuple[Int64s, NDArray[np.float32]]:
        """Return the likeliest tokens of the chosen draws and their log-probabilities, when they
        are there, [num_chosen, num_top] each.

        chosen: [num_draws], of those whose log-probabilities are asked for.
        """
        assert self.logprobs is not None, "no draw wants log-probabilities"
        rows = chosen[self.step.draws.wants_logprobs]
        top_ids, top_logprobs = self.logprobs.top()
        return top_ids[rows], top_logprobs[rows]

    def wait(self) -> Int64s:
        """Return the tokens, [num_sampled] int64, when they are there."""
        ids: Int64s = self.copy.wait().numpy()
        return ids if self.order is None else ids[self.order]

    def is_live(self, table: SequenceTable) -> NDArray[np.bool_]:
        """Return of which tokens the sequence is still there, and not ended by one before."""
        same = table.uid[self.places] == self.uids
        live: NDArray[np.bool_] = same & (self.positions < table.num_output_tokens[self.places])
        return live
