"""Computation of distinct texts step by step: side by side, or in the engine of answers."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from traceback import clear_frames
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.model_runner import is_out_of_memory
from pagedrun.paged.execution.pooling.flat_pass import FlatPass
from pagedrun.paged.execution.pooling.text_windows import DistinctText, cut_step
from pagedrun.paged.execution.run import Run
from pagedrun.paged.execution.step_result import StepResult
from pagedrun.paged.metrics.step_costs import StepFit
from pagedrun.paged.models.pooler import Pooler, Rows
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.values.engine_config import Deadline
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.request import Request


@dataclass(slots=True)
class TextCounts:
    """Steps, tokens of texts that were computed in them, and those taken from the cache."""

    steps: int = 0
    computed: int = 0
    cached: int = 0


class TextSteps(Protocol):
    """Computation of the distinct texts of windows.

    `fit`: times of its steps. `is_cut`: a deadline has ended it.
    """

    counts: TextCounts
    fit: StepFit
    is_cut: bool

    def run(
        self, texts: list[DistinctText], ends_at: float | None
    ) -> Iterator[Sequence[DistinctText]]:
        """Compute texts; yield those of each step, finished."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        ...

    def close(self) -> None:
        """Stop background work."""


class FlatSteps:
    """Texts side by side, without a KV cache and without padding; implements `TextSteps`.

    max_tokens: of a step, unless it is one text; halved when memory runs out.
    """

    def __init__(self, flat: FlatPass, max_tokens: int) -> None:
        self.counts = TextCounts()
        self.fit = StepFit()
        self.is_cut = False
        self._pass = flat
        self._max_tokens = max_tokens

    def run(
        self, texts: list[DistinctText], ends_at: float | None
    ) -> Iterator[Sequence[DistinctText]]:
        """Compute texts in their order; none is started that would not finish in time."""
        longest_s, start = 0.0, 0
        while start < len(texts):
            step = cut_step(texts, start, self._max_tokens)
            began = time.monotonic()
            if ends_at is not None and began + longest_s > ends_at:
                self.is_cut = True
                return
            num_tokens = sum(each.num_tokens for each in step)
            try:
                results = self._pass([each.text for each in step])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                # Frames of the failed step keep its tensors alive while the error is handled.
                clear_frames(error.__traceback__)
                self._pass.release()
                if len(step) > 1:
                    self._max_tokens = max(num_tokens // 2, 1)
                    continue
                step[0].fail(_too_large(num_tokens))
            else:
                for each, result in zip(step, results, strict=True):
                    each.finish(result)
                self.counts.computed += num_tokens
            seconds = time.monotonic() - began
            self.counts.steps += 1
            self.fit.add(seconds, num_tokens, 0)
            longest_s = max(longest_s, seconds)
            start += len(step)
            yield step

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of a layer."""
        return self._pass.cache_bytes

    def close(self) -> None:
        """Do nothing: there is no background work."""


def _too_large(num_tokens: int) -> RowError:
    """Return the error of a text that memory does not suffice for."""
    return RowError(
        "out_of_memory",
        f"a text of {num_tokens} tokens does not fit into memory; free some memory, or lower "
        f"{option('max_model_len')} and cut long texts with {option('on_overlong')}",
    )


class SharedSteps:
    """Texts in the engine of answers, one token each, whose prefixes are shared; implements
    `TextSteps`.

    flat: computes the texts that leave no room for the token of an answer.
    """

    def __init__(self, engine: Engine, flat: FlatSteps) -> None:
        self.counts = flat.counts
        self.fit = StepFit()
        self.is_cut = False
        self._engine = engine
        self._flat = flat
        sampler = engine.loaded.sampler
        assert isinstance(sampler, PoolingSampler)
        self._results = sampler.results
        self._results.clear()  # those of a run that was abandoned
        self._run: Run | None = None

    def run(
        self, texts: list[DistinctText], ends_at: float | None
    ) -> Iterator[Sequence[DistinctText]]:
        """Compute texts in the order of a plan."""
        most = self._engine.max_model_len
        yield from self._flat.run([each for each in texts if each.num_tokens >= most], ends_at)
        self.is_cut = self._flat.is_cut
        requests = [
            replace(Request.pooling(number, (each.text,)), texts=())
            for number, each in enumerate(texts)
            if each.num_tokens < most
        ]
        if self.is_cut or not requests:
            return
        deadline = None if ends_at is None else Deadline(ends_at, 0)
        self._run = run = self._engine.start(requests, deadline=deadline)
        for completion in run:
            each = texts[completion.request.index]
            if completion.error is not None:
                each.fail(completion.error)
            else:
                each.finish(self._results.pop(completion.request.index))
            self.counts.computed += each.num_tokens - completion.num_cached_tokens
            self.counts.cached += completion.num_cached_tokens
            yield (each,)
        self.is_cut = run.is_cut
        self.counts.steps += run.statistics.num_steps
        self.fit.include(run.statistics.step_fit)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the pool of keys and values."""
        return 0 if self._run is None else self._run.cache.num_bytes

    def close(self) -> None:
        """Stop the run in the engine of answers."""
        if self._run is not None:
            with suppress(RuntimeError):
                self._run.close()


class PoolingSampler(Sampler):
    """Logits stage that keeps the results of hidden states instead of choosing tokens.

    results: of each request, by its index, until it is taken.
    """

    def __init__(self, loaded: LoadedModel, pooler: Pooler) -> None:
        super().__init__((), loaded.device, ())
        self._pooler = pooler
        self.results: dict[int, Rows] = {}

    @torch.inference_mode()
    def sample(self, logits: Tensor, step: StepInput) -> StepResult:
        """Keep the result of each draw, of which each text has one; its token is 0.

        logits: hidden states, [num_draws, hidden_size].
        """
        draws = step.draws
        if len(draws):
            found = self._pooler(logits, np.arange(len(draws) + 1))
            self.results.update(zip(draws.row.tolist(), found, strict=True))
        return StepResult(torch.zeros(len(draws), dtype=torch.int64, device=logits.device))
