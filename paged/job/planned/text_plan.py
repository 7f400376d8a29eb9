"""Plan of a file for `embed`, `rerank` or `classify`: texts, tokens, steps and time of a run.

Texts of a model that sees them whole are cut into steps as in the run. Those of a causal model are
planned and simulated as prompts with an answer of one token, which share their prefixes.
"""

from dataclasses import replace
from itertools import chain
from typing import TypedDict

from pagedrun.paged.execution.device_facts import DeviceFacts, probe_device
from pagedrun.paged.execution.pooling.text_windows import TextTotals, TextWindow, count_steps
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.reader import open_inputs
from pagedrun.paged.job.open_model import PooledPlanModel
from pagedrun.paged.job.planned.plan_file import FilePlan
from pagedrun.paged.job.planned.timed_run import TimedRun
from pagedrun.paged.job.prepare import Prepared, prepare, warn_of_rows
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.metrics.report_sections import PlainValue, WeightFigures
from pagedrun.paged.planning.forecast import bounded_time
from pagedrun.paged.planning.forecast_sections import PeakMemory, RunTime
from pagedrun.paged.planning.memory import peak_resident_bytes
from pagedrun.paged.planning.sizing import fitted_to_device
from pagedrun.paged.values.request import Request


class TextRows(TypedDict):
    """`rows`: those of the file, those that run, and those refused by the code of their error."""

    total: int
    planned: int
    refused: dict[str, int]


class TextFigures(TypedDict):
    """`texts` of the rows, `distinct` ones of each window, which are computed; `longest` in
    tokens."""

    total: int
    distinct: int
    longest: int


class TextTokens(TypedDict):
    """`tokens`: of all texts, of `distinct` ones, of these those that are shared and those that are
    computed; `padded`: of all texts in batches of 32 that are sorted by length and padded to the
    longest of each, as in sentence-transformers."""

    all: int
    distinct: int
    shared_prefix: int
    computed: int
    padded: int


class TextPlan(TypedDict):
    """Plan of a task. `shares_prefixes`: texts share the keys and values of common prefixes.

    `run_time` is None where no such run of the model was timed on this machine.
    """

    task: str
    rows: TextRows
    texts: TextFigures
    tokens: TextTokens
    steps: int
    shares_prefixes: bool
    time: dict[str, float]
    run_time: RunTime | None
    memory: PeakMemory
    weights: WeightFigures
    config: dict[str, PlainValue]


def plan_texts(
    config: JobConfig, listener: JobListener, device: DeviceFacts | None = None
) -> TextPlan:
    """Return the plan of a job with `pooled` settings, an object that JSON can hold.

    Raises `UsageError` for errors that a run would refuse as a whole. `device` is the device to
    plan for, None for that of a run.
    """
    engine = config.engine
    device = device or probe_device(engine.device, engine.kernel_set, engine.activations)
    return _TextPlan(config, listener, device).run()


class _TextPlan:
    """One call of `plan_texts`."""

    def __init__(self, config: JobConfig, listener: JobListener, device: DeviceFacts) -> None:
        assert config.pooled is not None, "a task"
        self._config = config
        self._pooled = config.pooled
        self._listener = listener
        self._device = device
        self._counts = TextTotals()
        self._num_steps = 0  # of texts side by side
        self._fitted = fitted_to_device(config.engine, device.memory_bytes)
        self._file = FilePlan(config, listener, device, run_requests=self._window)
        self._longest_shared: int | None = None

    def run(self) -> TextPlan:
        config, file = self._config, self._file
        with open_inputs(config.inputs, config.reading) as source:
            prepared = prepare(config, source, self._listener, self._opened)
            file.lap("encode_s")
            model = prepared.model
            assert isinstance(model, PooledPlanModel)
            shares = model.spec.shares_prefixes
            self._longest_shared = prepared.max_model_len if shares else None
            self._listener.on_phase(Phase.PLAN)
            cached, steps, weights = self._shared(prepared) if shares else self._flat(prepared)
        counts, refused = self._counts, dict(file.refused.most_common())
        computed = counts.distinct_tokens - cached
        file.times["total_s"] = sum(file.times.values())
        return {
            "task": self._pooled.task.value,
            "rows": {"total": file.num_rows, "planned": counts.rows, "refused": refused},
            "texts": {
                "total": counts.texts,
                "distinct": counts.distinct,
                "longest": counts.longest,
            },
            "tokens": {
                "all": counts.tokens,
                "distinct": counts.distinct_tokens,
                "shared_prefix": cached,
                "computed": computed,
                "padded": counts.padded,
            },
            "steps": steps,
            "shares_prefixes": shares,
            "time": file.times,
            "run_time": self._run_time(steps, computed, counts.distinct if shares else 0),
            "memory": {"peak_resident": peak_resident_bytes()},
            "weights": weights,
            "config": {
                "model": str(config.engine.model),
                "dtype": config.engine.dtype,
                "max_model_len": prepared.max_model_len,
                "max_num_batched_tokens": self._fitted.max_num_batched_tokens,
            },
        }

    def _opened(self, *folder: object) -> PooledPlanModel:
        config = self._config
        return PooledPlanModel(config.engine, config.tokenizer or config.engine.model, self._pooled)

    def _flat(self, prepared: Prepared) -> tuple[int, int, WeightFigures]:
        """Return shared tokens, steps and weights of texts side by side."""
        model = prepared.model
        assert isinstance(model, PooledPlanModel)
        for number, rows in enumerate(chain([prepared.rows], prepared.later(()))):
            if number:
                warn_of_rows(rows, prepared.max_model_len, self._listener)
            self._file.asked(rows)
            self._file.lap("plan_s")
        return 0, self._num_steps, self._file.weights(model.config).figures

    def _shared(self, prepared: Prepared) -> tuple[int, int, WeightFigures]:
        """Return shared tokens, steps and weights of texts that share prefixes."""
        figures, weights = self._file.simulate(prepared)
        rows = figures["rows"]
        scale = (rows["planned"] - rows["duplicates"]) / max(rows["simulated"], 1)
        return figures["tokens"]["cached"], round(figures["steps"]["count"] * scale), weights

    def _window(self, requests: list[Request]) -> list[Request]:
        """Count the texts of a window; return the requests of those that share prefixes."""
        window = TextWindow.of(requests)
        self._counts.add(window)
        if self._longest_shared is None:
            most = self._fitted.max_num_batched_tokens
            self._num_steps += count_steps(window.distinct, most)
            return []
        return [
            replace(Request.pooling(number, (each.text,)), texts=())
            for number, each in enumerate(window.distinct)
            if each.num_tokens < self._longest_shared
        ]

    def _run_time(self, steps: int, computed: int, generated: int) -> RunTime | None:
        """Return the expected run time; None without timings of such a model and settings."""
        device = "cpu" if self._device.memory is None else "cuda"
        timed = TimedRun.read(self._config.engine, device, of_texts=True)
        if timed is None:
            return None
        work = (steps, computed, generated)
        return bounded_time(
            timed.costs,
            work,
            work,
            read_s=sum(self._file.times[name] for name in ("encode_s", "plan_s")),
            load_s=timed.load_s,
            compile_s=timed.compile_s,
        )
