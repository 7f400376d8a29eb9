"""Engine of embeddings, reranking and classification.

Models that see whole texts, and poolings of all tokens, are computed by a `FlatPass`, in steps cut
by their tokens. A causal model whose last token gives the result runs in the engine of answers,
where texts share the keys and values of their common prefixes. Equal texts of a window are computed
once.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.execution.pooling.flat_pass import FlatPass
from pagedrun.paged.execution.run import Run
from pagedrun.paged.execution.step_result import StepResult
from pagedrun.paged.metrics.report_sections import (
    EngineReport,
    LoadTimes,
    PoolingFigures,
    empty_engine_report,
    weight_figures,
)
from pagedrun.paged.metrics.run_statistics import describe_hardware, plain_config
from pagedrun.paged.metrics.timeline import NO_HOOKS, RunHooks, StepRecord
from pagedrun.paged.models.checkpoint.checkpoint import open_checkpoint
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.pooler import Pooler, Rows, normalized
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.plan_part import EarlierAnswers
from pagedrun.paged.planning.sizing import fitted_to_device
from pagedrun.paged.planning.windows import BackgroundPlanner
from pagedrun.paged.scheduling.step_input import StepInput
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.pooling import PooledText, Pooling
from pagedrun.paged.values.request import Completion, Request

PADDED_BATCH = 32  # texts of a padded batch, with which `padded_tokens` compares


class PoolingEngine:
    """Engine of the texts of a task; built by `load`."""

    def __init__(
        self, config: EngineConfig, loaded: LoadedModel, spec: PooledModelSpec, pooler: Pooler
    ) -> None:
        self.config = fitted_to_device(config, loaded.device.memory_bytes)
        self.loaded = loaded
        self.spec = spec
        self.pooler = pooler
        self._times: LoadTimes = {"load_s": loaded.load_s}

    @classmethod
    def load(
        cls, config: EngineConfig, loaded: LoadedModel, spec: PooledModelSpec
    ) -> "PoolingEngine":
        """Read the weights of the pooler; `loaded` is the network without a head."""
        network = loaded.config.network
        assert isinstance(network, DecoderSpec), "pagedrun's own layers compute it"
        with open_checkpoint(config.model) as checkpoint:
            pooler = Pooler(
                spec.pooler,
                config.model,
                checkpoint,
                network.embedding.hidden_size,
                loaded.device.kernels,
                loaded.device.torch_device,
            )
        return cls(config, loaded, spec, pooler)

    def warm_up(self, on_compile: Callable[[], None] = lambda: None) -> None:
        """Compile the kernels that runs will use; see `Engine`."""
        began = time.perf_counter()
        self.loaded.finish_compiling(on_compile)
        token_ids = (0,) * min(self.spec.max_length, 40)
        text = PooledText(token_ids, len(token_ids), 0)
        with self.loaded.device.notify_compiling(on_compile):
            for _ in self.start([Request.pooling(0, (text,))]):
                pass
        self._times["compile_s"] = time.perf_counter() - began

    @property
    def shares_prefixes(self) -> bool:
        """True if the engine of answers computes texts, whose prefixes are shared."""
        network = self.loaded.config.network
        is_causal = isinstance(network, DecoderSpec) and network.is_causal
        return is_causal and self.spec.pooler.poolings == (Pooling.LAST,)

    @cached_property
    def answering(self) -> Engine:
        """Engine of answers that computes texts, with a `PoolingSampler`."""
        sampler = PoolingSampler(self.loaded, self.pooler)
        memory = PoolMemory(self.loaded.model, sampler, self.loaded.device)
        loaded = replace(self.loaded, sampler=sampler, memory=memory)
        return Engine(replace(self.config, speculate="off"), loaded)

    def start(
        self,
        requests: Sequence[Request],
        *,
        more: Iterable[Sequence[Request]] | None = None,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> "PooledRun":
        """Return the run of requests with texts; see `interfaces.EngineLike`.

        Rows run in the order of the input; with a deadline the last ones are not started.
        """
        self.loaded.device.check(self.loaded.dtype)
        if self.shares_prefixes:
            return SharedRun(self, requests, more, done, deadline, hooks, self._times)
        return FlatRun(self, requests, more, done, deadline, hooks, self._times)


@dataclass(slots=True)
class _Counts:
    """Totals of a run."""

    rows: int = 0
    finished: int = 0
    texts: int = 0
    distinct: int = 0
    tokens: int = 0
    computed: int = 0
    steps: int = 0
    padded: int = 0  # tokens of padded batches of the same texts, in their order


@dataclass(slots=True, eq=False)
class _Distinct:
    """Text of a window, computed once, and the number of its uses that wait."""

    text: PooledText
    num_uses: int = 0
    result: Rows | None = None
    error: RowError | None = None


@dataclass(slots=True, eq=False)
class _Pending:
    """Request, and its texts in order."""

    request: Request
    texts: list[_Distinct]


@dataclass(slots=True, eq=False)
class _Window:
    """Requests of a window and their distinct texts, in order of first use."""

    pending: list[_Pending] = field(default_factory=list)
    distinct: list[_Distinct] = field(default_factory=list)
    num_texts: int = 0
    num_tokens: int = 0
    num_padded: int = 0

    @classmethod
    def of(cls, requests: Sequence[Request], done: Container[int]) -> "_Window":
        """Return the window of requests, without those that are `done`."""
        window = cls()
        known: dict[tuple[tuple[int, ...], int], _Distinct] = {}
        for request in requests:
            if request.index in done:
                continue
            used = []
            for text in request.texts:
                key = text.token_ids, text.num_first
                found = known.get(key)
                if found is None:
                    found = known[key] = _Distinct(text)
                    window.distinct.append(found)
                found.num_uses += 1
                used.append(found)
                window.num_tokens += len(text.token_ids)
            window.num_texts += len(used)
            window.pending.append(_Pending(request, used))
        lengths = [len(each.token_ids) for row in window.pending for each in row.request.texts]
        for first in range(0, len(lengths), PADDED_BATCH):
            batch = lengths[first : first + PADDED_BATCH]
            window.num_padded += max(batch) * len(batch)
        return window


class PooledRun:
    """Run of requests with texts: iterate it once for one completion per request.

    Subclasses compute the distinct texts of a window. Implements `interfaces.RunLike`.
    """

    def __init__(
        self,
        engine: PoolingEngine,
        requests: Sequence[Request],
        more: Iterable[Sequence[Request]] | None,
        done: Container[int],
        deadline: Deadline | None,
        hooks: RunHooks,
        times: LoadTimes,
    ) -> None:
        self.is_cut = False
        self._engine = engine
        self._ends_at = None if deadline is None else deadline.at
        self._hooks = hooks
        self._times = times
        self._counts = _Counts()
        self._plan_s = self._run_s = 0.0
        began = time.perf_counter()
        first = _Window.of(requests, done)
        self._plan_s = time.perf_counter() - began
        following = () if more is None else more
        self._windows: Iterator[_Window] = BackgroundPlanner(
            first, (_Window.of(each, done) for each in following)
        )
        self._began = 0.0
        self._waiting = 0

    def __iter__(self) -> Iterator[Completion]:
        """Yield one completion per request, as they finish."""
        self._began = time.perf_counter()
        for number, window in enumerate(self._windows):
            if number and self._hooks.on_window is not None:
                self._hooks.on_window()
            counts = self._counts
            counts.rows += len(window.pending)
            counts.texts += window.num_texts
            counts.distinct += len(window.distinct)
            counts.tokens += window.num_tokens
            counts.padded += window.num_padded
            yield from self._window(window)
            if self.is_cut:
                return

    def _window(self, window: _Window) -> Iterator[Completion]:
        """Yield the completions of a window, in the order of its requests."""
        waiting = iter(window.pending)
        row = next(waiting, None)
        self._waiting = len(window.pending)
        for _ in self._computed(window.distinct):
            self._run_s = time.perf_counter() - self._began
            while row is not None and all(each.result is not None for each in row.texts):
                yield self._completed(row)
                row = next(waiting, None)
            self._record()
            if self.is_cut:
                return

    def _computed(self, texts: list[_Distinct]) -> Iterator[None]:
        """Compute the results of texts, in order; yield after each step."""
        raise NotImplementedError

    def _completed(self, row: _Pending) -> Completion:
        request = row.request
        found = [each.result for each in row.texts]
        failed = next((each.error for each in row.texts if each.error is not None), None)
        for each in row.texts:
            each.num_uses -= 1
            if not each.num_uses:
                each.result = _NOTHING  # rows that wait hold the memory of their own texts alone
        self._counts.finished += 1
        self._waiting -= 1
        if failed is not None:
            return Completion(request, error=failed)
        rows = np.stack([each for each in found if each is not None])
        if not np.isfinite(rows).all():
            error = RowError(
                "nan_vector",
                f"the model's output contains NaN or infinity; try {option('dtype')} float32",
            )
            return Completion(request, error=error)
        return Completion(request, pooled=self._merged(request, rows))

    def _merged(self, request: Request, rows: Rows) -> Rows:
        """Return one row for each part of a request: the mean of its chunks, by their tokens."""
        parts = np.array([each.part for each in request.texts])
        if len(parts) == parts[-1] + 1:
            return rows
        weights = np.array([len(each.token_ids) for each in request.texts], np.float64)
        out = np.empty((parts[-1] + 1, rows.shape[1]), np.float32)
        for part in range(len(out)):
            own = parts == part
            wide = rows[own].astype(np.float64) * weights[own, None]
            out[part] = np.add.reduce(wide, axis=0) / weights[own].sum()
        return normalized(out) if self._engine.spec.pooler.normalizes else out

    def _record(self) -> None:
        """Tell the hooks of a step."""
        counts = self._counts
        counts.steps += 1
        if self._hooks.on_step is None:
            return
        left = counts.tokens - counts.computed
        self._hooks.on_step(
            StepRecord(
                t=self._run_s,
                step=counts.steps,
                running=0,
                waiting=self._waiting,
                blocks_total=0,
                blocks_used=0,
                blocks_shared=0,
                blocks_cached=0,
                tokens=0,
                finished=counts.finished,
                total=counts.rows,
                prompt_tokens=counts.tokens,
                cached_tokens=0,
                generated_tokens=0,
                preemptions=0,
                prompt_tokens_left=max(left, 0),
                all_prompt_tokens=counts.tokens,
            )
        )

    def close(self) -> None:
        """Stop background work; the input is read no further."""
        if isinstance(self._windows, BackgroundPlanner):
            self._windows.close()

    def state(self) -> dict[str, object]:
        """Return the counts so far."""
        counts = self._counts
        return {"rows": counts.rows, "finished": counts.finished, "steps": counts.steps}

    def snapshot(self) -> None:
        """Return None: there are no blocks to look at."""
        return

    def report(self) -> EngineReport:
        """Return the report without `rows`, which the job adds."""
        counts, loaded = self._counts, self._engine.loaded
        report = empty_engine_report()
        run_s = max(self._run_s, 1e-9)
        report["tokens"]["prompt"] = counts.tokens
        report["tokens"]["computed"] = counts.computed
        report["time"] = {
            **self._times,
            "plan_s": self._plan_s,
            "run_s": self._run_s,
            "prompt_tokens_per_s": counts.tokens / run_s,
            "generated_tokens_per_s": 0.0,
        }
        report["finish_reasons"] = {}
        held = loaded.model.num_bytes + self._engine.pooler.num_bytes
        number = loaded.model.network.num_weights
        report["weights"] = weight_figures(number, loaded.stored_bytes, held, loaded.linears.counts)
        memory = report["memory"]
        memory["weights"] = held
        memory["kv_pool"] = self._cache_bytes
        memory["device_total"] = loaded.device.memory_bytes or MemoryBudget.of_host().total
        memory["other"] = max(loaded.device.bytes_in_use() - held - self._cache_bytes, 0)
        memory["free"] = memory["device_total"] - held - self._cache_bytes - memory["other"]
        report["config"] = plain_config(self._engine.config.described())
        report["hardware"] = describe_hardware(loaded.device.torch_device.type)
        report["pooling"] = self._figures(run_s)
        return report

    @property
    def _cache_bytes(self) -> int:
        """Bytes of keys and values."""
        return 0

    def _figures(self, run_s: float) -> PoolingFigures:
        counts = self._counts
        return {
            "dimensions": self._engine.pooler.size,
            "texts": counts.texts,
            "distinct_texts": counts.distinct,
            "texts_per_s": counts.texts / run_s,
            "steps": counts.steps,
            "padded_tokens": counts.padded,
            "shared_prefix_tokens": 0,
        }


_NOTHING: Rows = np.empty(0, np.float32)


class FlatRun(PooledRun):
    """Run of texts side by side, without a KV cache and without padding."""

    def _computed(self, texts: list[_Distinct]) -> Iterator[None]:
        longest_s = 0.0
        for step in self._steps(texts):
            began = time.monotonic()
            if self._ends_at is not None and began + longest_s > self._ends_at:
                self.is_cut = True
                return
            results = self._pass([each.text for each in step])
            for each, result in zip(step, results, strict=True):
                each.result = result
            self._counts.computed += sum(len(each.text.token_ids) for each in step)
            longest_s = max(longest_s, time.monotonic() - began)
            yield

    def _steps(self, texts: list[_Distinct]) -> Iterator[list[_Distinct]]:
        """Yield the texts in steps of at most `max_num_batched_tokens` tokens, or of one text."""
        step: list[_Distinct] = []
        num_tokens, most = 0, self._engine.config.max_num_batched_tokens
        for each in texts:
            length = len(each.text.token_ids)
            if step and num_tokens + length > most:
                yield step
                step, num_tokens = [], 0
            step.append(each)
            num_tokens += length
        if step:
            yield step

    @cached_property
    def _pass(self) -> FlatPass:
        engine = self._engine
        return FlatPass(engine.loaded, engine.pooler, engine.config.block_size)

    @property
    def _cache_bytes(self) -> int:
        return self._pass.cache_bytes


class SharedRun(PooledRun):
    """Run of texts in the engine of answers, one token each, whose prefixes are shared."""

    def __init__(
        self,
        engine: PoolingEngine,
        requests: Sequence[Request],
        more: Iterable[Sequence[Request]] | None,
        done: Container[int],
        deadline: Deadline | None,
        hooks: RunHooks,
        times: LoadTimes,
    ) -> None:
        super().__init__(engine, requests, more, done, deadline, hooks, times)
        self._inner = engine.answering
        sampler = self._inner.loaded.sampler
        assert isinstance(sampler, PoolingSampler)
        self._results = sampler.results
        self._results.clear()  # those of a run that was abandoned
        self._run: Run | None = None
        self._cached = 0

    def _computed(self, texts: list[_Distinct]) -> Iterator[None]:
        if not texts:
            return
        yield from self._longest(texts)
        requests = [
            replace(Request.pooling(number, (each.text,)), texts=())
            for number, each in enumerate(texts)
            if each.result is None
        ]
        if not requests:
            return
        deadline = None if self._ends_at is None else Deadline(self._ends_at, 0)
        self._run = run = self._inner.start(requests, deadline=deadline)
        for completion in run:
            each = texts[completion.request.index]
            each.result = self._results.pop(completion.request.index, _NOTHING)
            each.error = completion.error
            length = len(each.text.token_ids)
            self._counts.computed += length - completion.num_cached_tokens
            self._cached += completion.num_cached_tokens
            yield
        self.is_cut = run.is_cut

    def _longest(self, texts: list[_Distinct]) -> Iterator[None]:
        """Compute the texts that leave no room for the token of an answer."""
        limit = self._inner.max_model_len
        flat = FlatPass(self._engine.loaded, self._engine.pooler, self._engine.config.block_size)
        for each in texts:
            if len(each.text.token_ids) >= limit:
                (each.result,) = flat([each.text])
                self._counts.computed += len(each.text.token_ids)
                yield

    def close(self) -> None:
        """Stop background work; the input is read no further."""
        super().close()
        if self._run is not None:
            with suppress(RuntimeError):
                self._run.close()

    @property
    def _cache_bytes(self) -> int:
        return 0 if self._run is None else self._run.cache.num_bytes

    def _figures(self, run_s: float) -> PoolingFigures:
        figures = super()._figures(run_s)
        figures["shared_prefix_tokens"] = self._cached
        return figures


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
        """Keep the result of each draw; its token is 0. logits: hidden states."""
        draws = step.draws
        if len(draws):
            rows = np.cumsum(step.samples)[draws.chunk] - 1
            found = self._pooler(logits[self._placed(rows)], np.arange(len(rows) + 1))
            self.results.update(zip(draws.row.tolist(), found, strict=True))
        return StepResult(torch.zeros(len(draws), dtype=torch.int64, device=logits.device))
