"""Sampler: logits in, token ids out, by each request's own parameters.

The random stream of a token is keyed by (seed, row, sample, position), never by the batch.
"""

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from pagedrun.kernels.array_types import Int64s
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
from pagedrun.paged.execution.step_result import StepResult
from pagedrun.paged.scheduling.step_input import SamplingMetadata, StepInput
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

NO_TOKEN = -1  # returned by the kernel for logits that allow no token (NaN, infinity)


class Sampler:
    """Logits stage: processors in order, then one token for every pending sample.

    The random stream of a token is keyed by (seed, row, sample, position), never by the batch.
    `processors`: None stands for `processors_of`.
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
        self._rows: set[int] = set()  # known to the processors

    def begin(self, request: Request, begun: Seq[int] = ()) -> None:
        """Add a request to the processors; begun: the first tokens of its answer."""
        self._rows.add(request.index)
        for processor in self._processors:
            processor.begin(request)
        if begun:
            tokens = np.array(begun, dtype=np.int64)
            self.note_tokens(np.full_like(tokens, request.index), np.zeros_like(tokens), tokens)

    def end(self, row: int) -> None:
        """Remove a request from the processors, by its index."""
        self._rows.discard(row)
        for processor in self._processors:
            processor.end(row)

    def end_all(self) -> None:
        """Remove all requests, at the end of an abandoned run."""
        for row in list(self._rows):
            self.end(row)

    @torch.inference_mode()
    def sample(self, logits: Tensor, step: StepInput) -> StepResult:
        """Choose a token for each draw of a step; the result has no scores.

        logits: [step.num_samples, vocab_size], one row for each chunk that samples; may be
        overwritten.
        """
        draws = step.draws
        if not len(draws):
            return StepResult(torch.empty(0, dtype=torch.int64, device=logits.device))
        rows = np.cumsum(step.samples)[draws.chunk] - 1
        if not draws.waits.any():
            return self.draw(logits, draws, rows, step.num_top)
        waiting = logits[self._placed(rows[draws.waits])]
        at_once = draws.part(~draws.waits, 0)
        drawn = self.draw(logits, at_once, rows[~draws.waits], step.num_top)
        ids = self._placed(np.full(len(draws), NO_TOKEN))
        ids[self._placed(np.flatnonzero(~draws.waits))] = drawn.ids
        return drawn._replace(ids=ids, waiting=waiting)

    @torch.inference_mode()
    def draw(
        self, logits: Tensor, draws: SamplingMetadata, rows: Int64s, num_top: int
    ) -> StepResult:
        """Choose a token for each of some draws; rows: [num_draws], the row of logits of each."""
        is_scored = bool(draws.wants_logprobs.any())  # by unprocessed logits
        choose = self._given if draws.given else self._drawn
        ids = choose(logits, draws, rows, may_write=not is_scored)
        if not is_scored:
            return StepResult(ids)
        wanted = self._placed(np.flatnonzero(draws.wants_logprobs))
        asked = ids[wanted].clamp(min=0)  # an arbitrary token for `NO_TOKEN`
        rows = rows[draws.wants_logprobs]
        return StepResult(ids, self.score(logits, self._placed(rows), asked, num_top))

    def score(self, logits: Tensor, rows: Tensor, ids: Tensor, num_top: int) -> TokenLogprobs:
        """Return the log-probabilities of tokens by rows of unprocessed logits; see the kernel."""
        num_top = min(num_top, logits.shape[1])
        return self._device.kernels.token_logprobs(logits, rows, ids, num_top)

    def _drawn(
        self, logits: Tensor, draws: SamplingMetadata, rows: Int64s, *, may_write: bool
    ) -> Tensor:
        """Return a token for each draw, [num_draws] int64; rows: the row of logits of each."""
        if len(rows) != len(logits) or (rows != np.arange(len(rows))).any():
            logits, may_write = logits[self._placed(rows)], True
        batch = SamplingBatch.of(draws, self.eos_token_ids, self._device)
        return self.choose(logits, batch, may_write=may_write)

    def _given(
        self, logits: Tensor, draws: SamplingMetadata, rows: Int64s, *, may_write: bool
    ) -> Tensor:
        """Return the tokens of draws of which some are given; the others are sampled.

        A given token becomes `NO_TOKEN` if its logits contain NaN.
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

    def choose(self, logits: Tensor, batch: SamplingBatch, *, may_write: bool = False) -> Tensor:
        """Return a token for each row of logits [num_rows, vocab_size], [num_rows] int64.

        `NO_TOKEN` where the logits allow none. may_write: processors may overwrite the logits.
        """
        applying = [each for each in self._processors if _applies(each, batch.draws)]
        if not may_write and not all(each.can_be_captured for each in applying):
            logits = logits.clone(memory_format=torch.contiguous_format)
        for processor in applying:
            logits = processor(logits, batch)
        return self._device.kernels.sample(
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

    def can_capture(self, draws: SamplingMetadata) -> bool:
        """Return whether a step with these draws may be captured and replayed."""
        if draws.wants_logprobs.any() or draws.waits.any():
            return False
        return all(each.can_be_captured or not each.applies(draws) for each in self._processors)

    def needs_newest_token(self, draws: SamplingMetadata) -> bool:
        """Return whether the host must see the tokens of these draws before the next step."""
        return any(each.needs_newest_token and each.applies(draws) for each in self._processors)

    def note_tokens(self, rows: Int64s, samples: Int64s, tokens: Int64s) -> None:
        """Pass tokens that the host has read to the processors that need them."""
        for processor in self._processors:
            if processor.needs_newest_token:
                processor.note_tokens(rows, samples, tokens)


def _applies(processor: LogitsProcessor, draws: SamplingMetadata | None) -> bool:
    """Return whether to call a processor; in a captured step (no draws), all that can be
    captured."""
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


def no_token_error(params: SamplingParams) -> RowError:
    """Return the error of a row without an allowed token."""
    why = "the model's output contains NaN or infinity"
    if params.allowed_token_ids is not None or params.bad_words or params.min_tokens:
        names = [option(name) for name in ("allowed_token_ids", "bad_words", "min_tokens")]
        why += f", or {', '.join(names[:-1])} and {names[-1]} forbid every token"
    return RowError(
        "nan_logits", f"{why}, so no token can be chosen; try {option('dtype')} float32"
    )
