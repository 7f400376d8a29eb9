"""Engine of embeddings, reranking and classification.

Models that see whole texts, and poolings of all tokens, are computed by `FlatSteps`, cut by their
tokens. A causal model whose last token gives the result runs in the engine of answers, where texts
share the keys and values of their common prefixes. Equal texts of a window are computed once, and
those of earlier windows are not computed again while their results are kept.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.execution.pooling.flat_pass import FlatPass
from pagedrun.paged.execution.pooling.text_steps import (
    FlatSteps,
    PoolingSampler,
    SharedSteps,
    TextSteps,
)
from pagedrun.paged.execution.pooling.text_windows import (
    DistinctText,
    PendingRow,
    RecentResults,
    TextTotals,
    TextWindow,
    finished_rows,
)
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
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.pooling import PooledText
from pagedrun.paged.values.request import Completion, Request

_RECENT_BYTES = 2**26  # results of earlier windows: 37,000 of 384 numbers


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

        Rows run in the order of the input, with a deadline in a random one.
        """
        self.loaded.device.check(self.loaded.dtype)
        all_requests = chain((requests,), () if more is None else more)
        windows = (TextWindow.of(each, done, deadline) for each in all_requests)
        began = time.perf_counter()
        first = next(windows)
        plan_s = time.perf_counter() - began
        ends_at = None if deadline is None else deadline.at
        return self.run(BackgroundPlanner(first, windows), ends_at, hooks, plan_s)

    def run(
        self,
        windows: Iterator[TextWindow],
        ends_at: float | None,
        hooks: RunHooks,
        plan_s: float = 0.0,
    ) -> "PooledRun":
        """Return the run of windows.

        ends_at: time after which no step is started (`time.monotonic`). plan_s: seconds that the
        first window took to make.
        """
        return PooledRun(self, self.steps(), windows, ends_at, hooks, {**self._times}, plan_s)

    def steps(self) -> TextSteps:
        """Return the computation of texts, of its own for each run."""
        flat = FlatPass(self.loaded, self.pooler, self.config.block_size)
        steps = FlatSteps(flat, self.config.max_num_batched_tokens)
        return SharedSteps(self.answering, steps) if self.spec.shares_prefixes else steps


class PooledRun:
    """Run of windows of texts: iterate it once for one completion per request.

    Implements `interfaces.RunLike`.
    """

    def __init__(
        self,
        engine: PoolingEngine,
        steps: TextSteps,
        windows: Iterator[TextWindow],
        ends_at: float | None,
        hooks: RunHooks,
        times: LoadTimes,
        plan_s: float,
    ) -> None:
        self.is_cut = False
        self._engine = engine
        self._steps = steps
        self._ends_at = ends_at
        self._hooks = hooks
        self._times = times
        self._totals = TextTotals()
        self._recent = RecentResults(_RECENT_BYTES)
        self._num_finished = self._num_records = self._tokens_done = 0
        self._plan_s, self._run_s = plan_s, 0.0
        self._windows = windows
        self._began = 0.0
        self._waiting = 0

    def __iter__(self) -> Iterator[Completion]:
        """Yield one completion per request, as they finish."""
        self._began = time.perf_counter()
        for number, window in enumerate(self._windows):
            if number and self._hooks.on_window is not None:
                self._hooks.on_window()
            self._totals.add(window)
            self._waiting = len(window.pending)
            known = self._recent.find(window.distinct)
            self._totals.remove(known)
            yield from map(self._completed, self._finished(known))
            left = [each for each in window.distinct if each.result is None]
            for texts in self._steps.run(left, self._ends_at):
                self._run_s = time.perf_counter() - self._began
                self._recent.keep(texts)
                yield from map(self._completed, self._finished(texts))
                self._record()
            self.is_cut = self._steps.is_cut
            if self.is_cut:
                return

    def _finished(self, texts: Sequence[DistinctText]) -> Iterator[PendingRow]:
        """Count the tokens of texts with results, once for each use; return the finished rows."""
        self._tokens_done += sum(each.num_tokens * each.num_uses for each in texts)
        return finished_rows(texts)

    def _completed(self, row: PendingRow) -> Completion:
        request = row.request
        found = [each.result for each in row.texts]
        failed = next((each.error for each in row.texts if each.error is not None), None)
        for each in row.texts:
            each.release()
        self._num_finished += 1
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
        totals = self._totals
        self._num_records += 1
        if self._hooks.on_step is None:
            return
        self._hooks.on_step(
            StepRecord(
                t=self._run_s,
                step=self._num_records,
                running=0,
                waiting=self._waiting,
                blocks_total=0,
                blocks_used=0,
                blocks_shared=0,
                blocks_cached=0,
                tokens=0,
                finished=self._num_finished,
                total=totals.rows,
                prompt_tokens=totals.tokens,
                cached_tokens=0,
                generated_tokens=0,
                preemptions=0,
                prompt_tokens_left=totals.tokens - self._tokens_done,
                all_prompt_tokens=totals.tokens,
            )
        )

    def close(self) -> None:
        """Stop background work; the input is read no further."""
        if isinstance(self._windows, BackgroundPlanner):
            self._windows.close()
        self._steps.close()

    def state(self) -> dict[str, object]:
        """Return the counts so far."""
        steps = self._steps.counts.steps
        return {"rows": self._totals.rows, "finished": self._num_finished, "steps": steps}

    def snapshot(self) -> None:
        """Return None: there are no blocks to look at."""
        return

    def report(self) -> EngineReport:
        """Return the report without `rows`, which the job adds."""
        totals, loaded = self._totals, self._engine.loaded
        report = empty_engine_report()
        run_s = max(self._run_s, 1e-9)
        report["tokens"]["prompt"] = totals.tokens
        report["tokens"]["computed"] = self._steps.counts.computed
        report["time"] = {
            **self._times,
            "plan_s": self._plan_s,
            "run_s": self._run_s,
            "prompt_tokens_per_s": totals.tokens / run_s,
            "generated_tokens_per_s": 0.0,
        }
        report["finish_reasons"] = {}
        held = loaded.model.num_bytes + self._engine.pooler.num_bytes
        number = loaded.model.network.num_weights
        report["weights"] = weight_figures(number, loaded.stored_bytes, held, loaded.linears.counts)
        memory = report["memory"]
        memory["weights"] = held
        memory["kv_pool"] = self._steps.cache_bytes
        memory["device_total"] = loaded.device.memory_bytes or MemoryBudget.of_host().total
        memory["other"] = max(loaded.device.bytes_in_use() - held - self._steps.cache_bytes, 0)
        memory["free"] = memory["device_total"] - held - self._steps.cache_bytes - memory["other"]
        report["config"] = plain_config(self._engine.config.described())
        report["hardware"] = describe_hardware(loaded.device.torch_device.type)
        report["pooling"] = self._figures(run_s)
        if (costs := self._steps.fit.costs) is not None:
            report["step_costs"] = costs
        return report

    def _figures(self, run_s: float) -> PoolingFigures:
        totals = self._totals
        return {
            "dimensions": self._engine.pooler.size,
            "texts": totals.texts,
            "distinct_texts": totals.distinct,
            "texts_per_s": totals.texts / run_s,
            "steps": self._steps.counts.steps,
            "padded_tokens": totals.padded,
            "shared_prefix_tokens": self._steps.counts.cached,
        }
