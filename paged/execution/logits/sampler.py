"""Sampler: logits in, token ids out, by each request's own parameters.

The random stream of a token is keyed by (seed, row, sample, position), never by the batch.
"""

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.op_values import TokenLogprobs
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.logits.logits_processor import LogitsProcessor, SamplingBatch
from pagedrun.paged.execution.logits.penalties import Penalties
from pagedrun.paged.execution.logits.token_processors import (
    AllowedTokens,
    BadWordsFilter,
    LogitBias,
    MinTokens,
)
from pagedrun.paged.scheduling.sequence_table import Int64s
from pagedrun.paged.scheduling.step_input import Draws, StepInput
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

NO_TOKEN = -1  # what the kernel gives where the logits hold no choice (NaN, infinity)


class SampleResult(NamedTuple):
    """ids: [num_draws] int64, `NO_TOKEN` where there is no choice. logprobs: of those draws whose
    log-probabilities are asked for, None where none is."""

    ids: Tensor
    logprobs: TokenLogprobs | None = None


class Sampler:
    """The logits stage: processors one after the other, then the choice of every pending sample.

    The random stream of a choice is keyed by (seed, row, sample, position), never by the batch.
    `processors` None are those of `processors_of`.
    """

    def __init__(
        self,
        eos_token_ids: Seq[int],
        device: Device,
        processors: Seq[LogitsProcessor] | None = None,
    ) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        self._device = device
        self._processors = processors_of(device) if processors is None else tuple(processors)
        self._rows: set[int] = set()  # that the processors know of

    def begin(self, request: Request, begun: Seq[int] = ()) -> None:
        """Tell the processors of a request whose tokens will be drawn from now on, those `begun`
        being the first of its answer.
        """
        self._rows.add(request.index)
        for processor in self._processors:
            processor.begin(request)
        if begun:
            tokens = np.array(begun, dtype=np.int64)
            self.note_tokens(np.full_like(tokens, request.index), np.zeros_like(tokens), tokens)

    def end(self, row: int) -> None:
        """Tell the processors that a request, by its index, gets no token any more."""
        self._rows.discard(row)
        for processor in self._processors:
            processor.end(row)

    def end_all(self) -> None:
        """Tell the processors that no request gets a token any more: their run is given up."""
        for row in list(self._rows):
            self.end(row)

    @torch.inference_mode()
    def sample(self, logits: Tensor, step: StepInput) -> SampleResult:
        """Choose a token for each draw of a step.

        logits: [step.num_samples, vocab_size], one row for each chunk that samples. They are the
        stage's from now on: it may write into them.
        """
        draws = step.draws
        if not len(draws):
            return SampleResult(torch.empty(0, dtype=torch.int64, device=logits.device))
        rows = np.cumsum(step.samples)[draws.chunk] - 1
        is_scored = bool(draws.wants_logprobs.any())  # by the logits as the model gave them
        choose = self._given if draws.given else self._drawn
        ids = choose(logits, draws, rows, may_write=not is_scored)
        if not is_scored:
            return SampleResult(ids)
        wanted = self._placed(np.flatnonzero(draws.wants_logprobs))
        asked = ids[wanted].clamp(min=0)  # where there was no choice any token will do
        rows = rows[draws.wants_logprobs]
        return SampleResult(ids, self.score(logits, self._placed(rows), asked, step.num_top))

    def score(self, logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
        """Return how likely tokens are by rows of logits as the model gave them: see the kernel."""
        num_top = min(num_top, logits.shape[1])
        return self._device.kernels.token_logprobs(logits, rows, ids, num_top)

    def _drawn(self, logits: Tensor, draws: Draws, rows: Int64s, *, may_write: bool) -> Tensor:
        """Return a token for each draw, [num_draws] int64; rows: whose logits each is by."""
        if len(rows) != len(logits) or (rows != np.arange(len(rows))).any():
            logits, may_write = logits[self._placed(rows)], True
        batch = SamplingBatch.of(draws, self.eos_token_ids, self._device)
        return self.choose(logits, batch, may_write=may_write).ids

    def _given(self, logits: Tensor, draws: Draws, rows: Int64s, *, may_write: bool) -> Tensor:
        """Return the tokens of a step's draws where some are given: the others are drawn.

        A given token is `NO_TOKEN` as well where the logits hold no choice.
        """
        tokens = np.full(len(draws), NO_TOKEN)
        tokens[list(draws.given)] = list(draws.given.values())
        is_free = tokens == NO_TOKEN
        ids = self._placed(tokens)
        given = self._placed(np.flatnonzero(~is_free))
        scores = self.score(logits, self._placed(rows[~is_free]), ids[given], 0).logprobs
        ids[given] = torch.where(scores.isnan(), NO_TOKEN, ids[given])
        if is_free.any():
            free = self._placed(np.flatnonzero(is_free))
            part = draws.part(is_free, 0)
            ids[free] = self._drawn(logits, part, rows[is_free], may_write=may_write)
        return ids

    def _placed(self, numbers: Int64s) -> Tensor:
        return self._device.place(torch.from_numpy(numbers))

    def choose(
        self, logits: Tensor, batch: SamplingBatch, *, may_write: bool = False
    ) -> SampleResult:
        """Choose a token for each row of logits [num_rows, vocab_size].

        They stay as they are unless processors `may_write` into them.
        """
        applying = [each for each in self._processors if _applies(each, batch.draws)]
        if not may_write and not all(each.can_be_captured for each in applying):
            logits = logits.clone(memory_format=torch.contiguous_format)
        for processor in applying:
            logits = processor(logits, batch)
        return SampleResult(
            self._device.kernels.sample(
                logits,
                batch.temperature,
                batch.top_k,
                batch.top_p,
                batch.min_p,
                batch.seed,
                batch.row,
                batch.sample,
                batch.position,
                filtered=batch.filtered,
            )
        )

    def can_capture(self, draws: Draws) -> bool:
        """Return whether a step with these draws may be captured and replayed."""
        if draws.wants_logprobs.any():
            return False
        return all(each.can_be_captured or not each.applies(draws) for each in self._processors)

    def needs_newest_token(self, draws: Draws) -> bool:
        """Return whether the host has to see these draws' tokens before the next step."""
        return any(each.needs_newest_token and each.applies(draws) for each in self._processors)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Tell the processors that need them of tokens that the host has seen."""
        for processor in self._processors:
            if processor.needs_newest_token:
                processor.note_tokens(rows, samples, tokens)


def _applies(processor: LogitsProcessor, draws: Draws | None) -> bool:
    """Return whether to call a processor; a captured step has no draws, and calls what it can."""
    return processor.can_be_captured if draws is None else processor.applies(draws)


def processors_of(device: Device) -> tuple[LogitsProcessor, ...]:
    """Return new processors for a sampler on this device."""
    return (
        AllowedTokens(device),
        BadWordsFilter(device),
        MinTokens(),
        LogitBias(device),
        Penalties(device),
    )


def no_choice(params: SamplingParams) -> RowError:
    """Return the error of a row of whose tokens none can be chosen."""
    why = "the model's output contains NaN or infinity"
    if params.allowed_token_ids is not None or params.bad_words or params.min_tokens:
        names = [option(name) for name in ("allowed_token_ids", "bad_words", "min_tokens")]
        why += f", or {', '.join(names[:-1])} and {names[-1]} forbid every token"
    return RowError(
        "nan_logits", f"{why}, so no token can be chosen; try {option('dtype')} float32"
    )
