"""Results of a step: token ids and log-probabilities on the device, and their way to the host.

`InFlight` holds a `StepResult` whose tokens have been appended to their sequences and whose
copies to the host have started. `KnownTokens` gives the next step those tokens on the device,
before the host has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Bools, Float32s, Int64s
from pagedrun.kernels.op_values import TokenLogprobs
from pagedrun.paged.execution.device import Device, HostCopy
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.scheduling.sequence_table import SequenceTable
from pagedrun.paged.scheduling.step_input import SamplingMetadata, StepInput


class TokenStates(NamedTuple):
    """Hidden states of the tokens of a step, or of a piece of it, for an MTP module.

    order: [num_tokens] int64, index in the piece of each token of the batch. states: [num_tokens,
    hidden_size], of the tokens of the batch; overwritten by the next step.
    """

    batch: ForwardBatch
    order: Int64s
    states: Tensor


class StepResult(NamedTuple):
    """Tokens and log-probabilities of a step, on the device.

    ids: int64, the sampled tokens, `NO_TOKEN` where the logits allow none, and for draws that wait.
    logprobs: of the draws that request them and do not wait; scores: of the targets of the step;
    both None without any. order: [num_draws] int64, index in `ids` of the token of each draw, None
    for 0, 1, 2, … waiting: [num_waiting, vocab_size], logits of the draws that wait, None without.
    states: of the pieces in order, none if no MTP module follows.
    """

    ids: Tensor
    logprobs: TokenLogprobs | None = None
    scores: TokenLogprobs | None = None
    order: Int64s | None = None
    waiting: Tensor | None = None
    states: tuple[TokenStates, ...] = ()

    def index_of(self, draws: Int64s) -> Int64s:
        """Return the indices in `ids` of the tokens of some draws."""
        return draws if self.order is None else self.order[draws]

    def followed_by(self, other: "StepResult") -> "StepResult":
        """Return the result of a step that was computed in two pieces."""
        order = None
        if self.order is not None or other.order is not None:
            first, second = (
                np.arange(len(each.ids)) if each.order is None else each.order
                for each in (self, other)
            )
            order = np.concatenate([first, second + len(self.ids)])
        return StepResult(
            torch.cat([self.ids, other.ids]),
            joined([self.logprobs, other.logprobs]),
            joined([self.scores, other.scores]),
            order,
            _stacked([self.waiting, other.waiting]),
            self.states + other.states,
        )


def joined(parts: list[TokenLogprobs | None]) -> TokenLogprobs | None:
    """Return the concatenation of all parts, None if there is none."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    return TokenLogprobs(*map(torch.cat, zip(*found, strict=True)))


def _stacked(parts: list[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


class FoundLogprob(NamedTuple):
    """Log-probability and rank of a token, and the most likely tokens at its position with
    theirs."""

    logprob: float
    rank: int
    top: list[tuple[int, float]]

    @property
    def is_number(self) -> bool:
        """Return whether the log-probability is not NaN."""
        return self.logprob == self.logprob


@dataclass(frozen=True, slots=True)
class HostLogprobs:
    """Copy of a `TokenLogprobs` to the host."""

    parts: tuple[HostCopy, ...]

    @classmethod
    def of(cls, found: TokenLogprobs | None, device: Device) -> "HostLogprobs | None":
        """Start the copy; None for None."""
        return None if found is None else cls(tuple(map(device.to_host, found)))

    def top(self) -> tuple[Int64s, Float32s]:
        """Return the most likely tokens and their log-probabilities, [num_tokens, num_top] each."""
        _, _, top_ids, top_logprobs = (part.wait().numpy() for part in self.parts)
        return top_ids, top_logprobs

    def of_draws(
        self, draws: SamplingMetadata, chosen: Bools
    ) -> Iterator[tuple[int, FoundLogprob]]:
        """Wait, then yield index and log-probability of the chosen draws that request one.

        draws: of which the first request the entries, in order. chosen: [num_draws].
        """
        wants = draws.wants_logprobs[: len(chosen)]
        indices = np.flatnonzero(wants & chosen).tolist()
        yield from zip(indices, self.wait(chosen[wants]), strict=True)

    def wait(self, chosen: Bools | None = None) -> Iterator[FoundLogprob]:
        """Wait for the copy and yield its entries in order, rounded to the shortest decimals.

        chosen: [num_tokens], the entries to yield; None means all.
        """
        parts = [part.wait().numpy() for part in self.parts]
        if chosen is not None:
            parts = [part[chosen] for part in parts]
        logprobs, ranks, top_ids, top_logprobs = parts
        found = zip(
            _shortest(logprobs), ranks.tolist(), top_ids.tolist(), top_logprobs, strict=True
        )
        for logprob, rank, ids, values in found:
            yield FoundLogprob(logprob, rank, list(zip(ids, _shortest(values), strict=True)))


def _shortest(values: Float32s) -> list[float]:
    """Return, for each float32, the float64 with the fewest digits that rounds to it."""
    return [float(str(value)) for value in values]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Result of a launched step, its copies on their way to the host, and its sequences.

    step: the input. ids, logprobs, scores: copies of those of the result. row_indices, uids:
    [num_sampled] int64, row in the table and id of the sequence of each token, those behind drafts
    aside. positions: [num_sampled] int64, index among the generated tokens of the sequence.
    """

    result: StepResult
    step: StepInput
    ids: HostCopy
    logprobs: HostLogprobs | None
    scores: HostLogprobs | None
    row_indices: Int64s
    uids: Int64s
    positions: Int64s

    @classmethod
    def launched(
        cls,
        result: StepResult,
        step: StepInput,
        table: SequenceTable,
        grown: Int64s,
        device: Device,
    ) -> "InFlight":
        """Return a step whose tokens have been appended to the sequences at row indices `grown`."""
        return cls(
            result=result,
            step=step,
            ids=device.to_host(result.ids),
            logprobs=HostLogprobs.of(result.logprobs, device),
            scores=HostLogprobs.of(result.scores, device),
            row_indices=grown,
            uids=table.uid[grown],
            positions=step.draws.position[: len(grown)] - table.num_prompt_tokens[grown],
        )

    def scored(self) -> Iterator[tuple[int, int, int, FoundLogprob]]:
        """Wait, then yield row, sample, token and log-probability of each target."""
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

    def top_of(self, chosen: Bools) -> tuple[Int64s, Float32s]:
        """Wait, then return the most likely tokens of the chosen draws and their log-probabilities,
        [num_chosen, num_top] each.

        chosen: [num_draws], only draws that request log-probabilities.
        """
        assert self.logprobs is not None, "no draw wants log-probabilities"
        rows = chosen[self.step.draws.wants_logprobs[: len(chosen)]]
        top_ids, top_logprobs = self.logprobs.top()
        return top_ids[rows], top_logprobs[rows]

    def wait(self) -> Int64s:
        """Wait, then return the tokens, [num_sampled] int64."""
        ids: Int64s = self.ids.wait().numpy()
        return ids if self.result.order is None else ids[self.result.order]

    def is_live(self, table: SequenceTable) -> Bools:
        """Return a mask of the tokens whose sequence exists and was not ended by an earlier
        token."""
        same = table.uid[self.row_indices] == self.uids
        live: Bools = same & (self.positions < table.num_output_tokens[self.row_indices])
        return live


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Tokens of the previous step that are inputs of this one.

    ids: int64 on the device, the tokens of the previous step. sources: [num_unknown] int64, indices
    in `ids` of the unknown tokens of this step, in order.
    """

    ids: Tensor
    sources: Int64s

    @classmethod
    def of(cls, step: StepInput, before: InFlight | None) -> "KnownTokens | None":
        """Return the tokens of `before` that are inputs of a step, None if there are none."""
        if not len(step.sources):
            return None
        assert before is not None, "a token is unknown that no step is computing"
        return cls(before.result.ids, before.result.index_of(step.sources))

    def chosen(self, sources: Tensor) -> Tensor:
        """Return the unknown tokens, [num_unknown] int64; an arbitrary one in place of `NO_TOKEN`.

        sources: those of this object, on the device.
        """
        return self.ids.index_select(0, sources).clamp(min=0)
