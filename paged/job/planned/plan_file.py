"""Plan of a file: forecast of a run without its arithmetic.

Needs the tokenizer and the model's config. No weights are read, and torch is imported only to ask
for the properties of a GPU.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pagedrun.paged.cache.cache_spec import PoolShape
from pagedrun.paged.execution.device_facts import DeviceFacts, probe_device
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.reader import is_repeatable, open_inputs
from pagedrun.paged.job.open_model import PlanModel, PooledPlanModel
from pagedrun.paged.job.planned.draft_forecast import DraftForecast, RecordedAnswers
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.job.planned.template_advice import TemplateAdvisor, sample_rows
from pagedrun.paged.job.planned.timed_run import TimedRun, calibrate
from pagedrun.paged.job.prepare import Prepared, prepare, warn_of_rows
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.metrics.report_sections import PlainValue, WeightFigures
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.runnable_config import RunnableConfig
from pagedrun.paged.planning.forecast import Forecast, run_time
from pagedrun.paged.planning.forecast_sections import (
    DecodingRoom,
    ForecastFigures,
    PlanReport,
    RunTime,
)
from pagedrun.paged.planning.memory import peak_resident_bytes
from pagedrun.paged.planning.passes import PassCosts, fitted_to_pass
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.pool_sizing import longest_row
from pagedrun.paged.planning.simulation import Simulator
from pagedrun.paged.planning.sizing import RunSizing, fitted_to_device
from pagedrun.paged.planning.units import ReplicaForecast
from pagedrun.paged.speculation.speculation import can_speculate
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import DTYPE_BYTES, OFF, EngineConfig
from pagedrun.paged.values.errors import option
from pagedrun.paged.values.request import Request

DEFAULT_SIMULATED_ROWS = 100_000
MAX_TEXT_CHARS = 60


def plan_file(
    config: JobConfig,
    listener: JobListener,
    *,
    max_simulated_rows: int = DEFAULT_SIMULATED_ROWS,
    show_text: bool = False,
    calibrates: bool = False,
    num_replicas: int | None = None,
    answers: Path | None = None,
    device: DeviceFacts | None = None,
) -> PlanReport:
    """Return the forecast of the job, an object that JSON can hold.

    Raises `UsageError` for errors that a run would refuse as a whole. At most `max_simulated_rows`
    are simulated. Texts of the file are included only with `show_text`. With `calibrates` the model
    is loaded and timed for some seconds, so that the run time is known. With `num_replicas` it
    includes the work of so many replicas. With `answers`, an output of this input, the steps with
    drafts are estimated. `device` is the device to plan for, None for that of a run.
    """
    engine = config.engine
    device = device or probe_device(engine.device, engine.kernel_set, engine.activations)
    plan = FilePlan(config, listener, device, max_simulated_rows, show_text, num_replicas, answers)
    return plan.run(calibrates)


Requests = Callable[[list[Request]], list[Request]]


class FilePlan:
    """One call of `plan_file`.

    `times` are the seconds of its stages, `refused` the rows that are, by the code of their error.
    `run_requests` returns the requests that run for those of a window, None for these themselves.
    """

    def __init__(
        self,
        config: JobConfig,
        listener: JobListener,
        device: DeviceFacts,
        max_simulated_rows: int = DEFAULT_SIMULATED_ROWS,
        show_text: bool = False,
        num_replicas: int | None = None,
        answers: Path | None = None,
        run_requests: Requests | None = None,
    ) -> None:
        self._recorded = None if answers is None else RecordedAnswers(answers)
        self._drafts: DraftForecast | None = None
        self._run_requests = run_requests
        self._config = config
        self._listener = listener
        self._device = device
        self._max_simulated_rows = max_simulated_rows
        self._show_text = show_text
        self._replicas: ReplicaForecast | None = None
        if num_replicas is not None:
            engine = fitted_to_device(config.engine, device.memory_bytes)
            self._replicas = ReplicaForecast(
                num_replicas, engine.block_size, prefix_caching=engine.prefix_caching
            )
        self.times: dict[str, float] = {}
        self.refused: Counter[str] = Counter()
        self._num_clamped = 0
        self._num_voting = 0
        self.num_rows = 0
        self._began = time.perf_counter()
        self._fitted = config.engine  # to the device, and in the end to the plan
        self._decoding: DecodingRoom = {"states": 0, "graphs": 0}

    def run(self, calibrates: bool) -> PlanReport:
        """Return the forecast of the job; see `plan_file`."""
        config = self._config
        with open_inputs(config.inputs, config.reading) as source:
            prepared = prepare(config, source, self._listener, PlanModel)
            self.lap("encode_s")
            forecast, weights = self.simulate(prepared)
        model = prepared.model
        assert isinstance(model, PlanModel)
        advice = None
        if is_repeatable(*config.inputs):
            self._listener.on_phase(Phase.PLAN)
            rows = sample_rows(config)
            advisor = TemplateAdvisor(config.prompts, config.sampling, model.tokenizer)
            advice = advisor.advise(rows, show_text=self._show_text)
            self.lap("advice_s")
        if calibrates and forecast["rows"]["planned"]:
            self._calibrate()
        timed = TimedRun.read(config.engine, "cpu" if self._device.memory is None else "cuda")
        if self._drafts is not None:
            self._began = time.perf_counter()
            figures = self._drafts.figures(None if timed is None else timed.costs)
            forecast["steps"]["drafts"] = figures
            self.lap("replay_s")
        self.times["total_s"] = sum(self.times.values())
        if model.config.library is not None:
            forecast["library"] = model.config.library
        if self._device.memory is not None:
            forecast["decoding"] = self._decoding
        return {
            **forecast,
            "weights": weights,
            "advice": advice,
            "clamped": self._num_clamped,
            "voting": self._num_voting,
            "time": self.times,
            "run_time": self._run_time(forecast, timed),
            "memory": {"peak_resident": peak_resident_bytes()},
            "config": {
                "model": str(config.engine.model),
                "prompt_mode": prepared.prompt_mode,
                **_engine_flags(self._fitted),
            },
        }

    def _calibrate(self) -> None:
        config = self._config
        calibrate(config.engine, config.tokenizer or config.engine.model, self._listener)

    def _settings(self, settings: EngineConfig, passes: PassCosts | None) -> EngineConfig:
        """Return the settings of the model fitted to the device."""
        config = fitted_to_device(settings, self._device.memory_bytes)
        return config if passes is None else passes.fitted(config, self._device.memory_bytes)

    def _run_time(self, forecast: ForecastFigures, timed: TimedRun | None) -> RunTime | None:
        """Return the expected run time; timed: None without such a model and settings."""
        if timed is None:
            return None
        return run_time(
            forecast,
            timed.costs,
            read_s=self.times["encode_s"] + self.times["plan_s"],
            load_s=timed.load_s,
            compile_s=timed.compile_s,
            max_num_batched_tokens=self._fitted.max_num_batched_tokens,
            ignore_eos=self._config.sampling.ignore_eos,
        )

    def weights(self, model: RunnableConfig) -> PlannedWeights:
        """Return the weights of the model."""
        config = self._config.engine
        dtype = self._device.dtypes.of_model(config.dtype, model.dtype, by_torch=model.by_torch)
        header = CheckpointHeader.read(config.model)
        return PlannedWeights(model, header, dtype, self._device)

    def simulate(self, prepared: Prepared) -> tuple[ForecastFigures, WeightFigures]:
        """Plan the windows in order, and simulate up to the limit of rows."""
        model = prepared.model
        assert isinstance(model, PlanModel | PooledPlanModel)
        device, described = self._device, model.config
        weights = self.weights(described)
        passes = weights.passes(model.settings)
        if passes is None and isinstance(model, PlanModel) and isinstance(described, ModelConfig):
            header = CheckpointHeader.read(model.settings.model)
            if header is not None:
                is_async = device.async_scheduling
                described = described.with_mtp(model.settings, header, is_async=is_async)
                weights = self.weights(described)
        config = self._settings(model.settings, passes)
        if model.config.notice is not None:
            self._listener.on_warning(model.config.notice)
        dtype = device.dtypes.of_model(
            config.dtype, model.config.dtype, by_torch=model.config.by_torch
        )
        stored = device.dtypes.of_cache(config.kv_cache_dtype, dtype)
        network = described.network
        specs = network.kv_cache_specs(stored or dtype)
        budget = device.budget(
            weights=weights.held_bytes,
            activations=network.activation_bytes(
                DTYPE_BYTES[dtype],
                config.max_num_batched_tokens,
                min(config.max_num_seqs, config.max_num_batched_tokens),
            ),
            utilization=config.gpu_memory_utilization,
        )
        requests = self.asked(prepared.rows)
        longest = prepared.max_model_len
        if not prepared.has_more:
            longest = longest_row(requests, longest)
        if not prepared.has_more and device.memory is None:
            config, specs = fitted_to_pass(config, network, specs, requests, budget.pool, longest)
        sizing = RunSizing(
            config,
            network,
            dtype,
            specs,
            network.state_specs(dtype),
            budget,
            device.memory_bytes,
            prepared.max_model_len,
            longest,
        )
        basis = sizing.basis(model.config.vocab_size, device.read_once)
        planner = basis.planner(config)
        self._listener.on_phase(Phase.PLAN)
        first = planner.window(requests, has_next=prepared.has_more).plan
        config, left, sizes, states = sizing.sizes(first, is_whole=not prepared.has_more)
        self._fitted = config
        self._decoding = {"states": left.decode_states, "graphs": left.graphs}
        show = _show_with(model.tokenizer) if self._show_text else None
        forecast = Forecast(config, specs, sizes, show)

        def of_window(rows: Sequence[JobRow]) -> list[Request]:
            warn_of_rows(rows, prepared.max_model_len, self._listener)
            return self.asked(rows)

        def note(plan: Plan) -> None:
            forecast.add(plan)
            if self._replicas is not None:
                self._replicas.add(plan, has_next=prepared.has_more)

        def plans() -> Iterator[Plan]:
            note(first)
            yield first
            self.lap("simulate_s")
            for window in planner.windows(map(of_window, prepared.later(()))):
                note(window.plan)
                self.lap("plan_s")
                yield window.plan
                self.lap("simulate_s")

        rest, shapes = plans(), PoolShape.of_all(specs, sizes)
        self.lap("plan_s")
        simulation = Simulator(
            rest,
            config,
            shapes=shapes,
            bytes_read=network.bytes_read(specs),
            states=states,
            max_model_len=planner.reserved_len(requests),
            max_rows=self._max_simulated_rows,
            async_scheduling=device.async_scheduling,
            whole_prompts=any(spec.is_transient for spec in specs),
            staggers=passes is not None,
        ).run()
        self.lap("simulate_s")
        for _ in rest:
            pass  # rows that are not simulated are planned too
        if self._recorded is not None:
            if config.speculate != OFF and can_speculate(
                network,
                specs,
                is_row_invariant=device.memory is None or config.reproducible,
            ):
                self._drafts = DraftForecast(
                    self._recorded,
                    model.tokenizer,
                    model.config.vocab_size,
                    basis.planner(config),
                    config,
                    shapes,
                    simulation,
                    states,
                    streams=passes is not None,
                )
            else:
                self._listener.on_warning(
                    f"{option('answers')} has no effect: a run with these settings has no drafts"
                )
        figures = forecast.to_dict(simulation, self.refused, self.num_rows)
        if self._replicas is not None:
            figures["replicas"] = self._replicas.figures()
        told = weights.figures
        if passes is not None:
            rows = figures["rows"]
            scale = (rows["planned"] - rows["duplicates"]) / max(rows["simulated"], 1)
            is_full = simulation.max_running < min(simulation.num_rows, config.max_num_seqs)
            figures["streaming"], told = passes.forecast(
                told, simulation.step_tokens, scale, is_full=is_full
            )
        return figures, told

    def asked(self, rows: Sequence[JobRow]) -> list[Request]:
        """Return the requests that run for the rows of a window, and count them."""
        self.lap("encode_s")
        self.num_rows += len(rows)
        if self._recorded is not None:
            self._recorded.take(rows)
        self.refused.update(row.error.code for row in rows if row.error is not None)
        self._num_clamped += sum(row.encoded.clamped for row in rows)
        asked = [row.request for row in rows if row.request is not None]
        self._num_voting += sum(request.params.vote is not None for request in asked)
        return asked if self._run_requests is None else self._run_requests(asked)

    def lap(self, name: str) -> None:
        """Add the time since the last lap to a stage."""
        now = time.perf_counter()
        self.times[name] = self.times.get(name, 0.0) + now - self._began
        self._began = now


def _engine_flags(config: EngineConfig) -> dict[str, PlainValue]:
    names = (
        "model_impl",
        "dtype",
        "activations",
        "max_model_len",
        "block_size",
        "num_blocks",
        "kv_cache_memory_bytes",
        "max_num_seqs",
        "max_num_batched_tokens",
        "refill_share",
        "prefix_caching",
    )
    return {**{name: getattr(config, name) for name in names}, "fitted": ", ".join(config.fitted)}


def _show_with(tokenizer: Tokenizer) -> Callable[[tuple[int, ...]], str]:
    def show(token_ids: tuple[int, ...]) -> str:
        text = tokenizer.decode(list(token_ids[: MAX_TEXT_CHARS * 2]), skip_special_tokens=False)
        return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"

    return show
