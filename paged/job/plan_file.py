"""Plan a file: everything that a run would do with it but the arithmetic.

Needs the tokenizer and the model's config. No weights are read, and torch is imported only to ask
a GPU that may be there.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pagedrun.paged.execution.devices.device_facts import DeviceFacts
from pagedrun.paged.execution.devices.device_probe import probe_device
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.reader import is_repeatable, open_rows
from pagedrun.paged.job.interfaces import EngineLike
from pagedrun.paged.job.listener import JobListener, Phase
from pagedrun.paged.job.prepare import Prepared, prepare, warn_of_rows
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.job.prompts.template_advice import TemplateAdvisor
from pagedrun.paged.job.row_sample import sample_rows
from pagedrun.paged.models.checkpoint_header import CheckpointHeader
from pagedrun.paged.models.describe import describe_model
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.network.stored_network import StoredNetwork, all_stored_bytes
from pagedrun.paged.models.rotary_positions import num_rotary_positions
from pagedrun.paged.models.runnable_config import RunnableConfig
from pagedrun.paged.planning.memory import peak_resident_bytes
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.planned_pools import PlannedPools
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.planning.pool_sizing import PoolSizer
from pagedrun.paged.planning.preview.forecast import Forecast
from pagedrun.paged.planning.preview.forecast_sections import ForecastFigures, PlanReport
from pagedrun.paged.planning.preview.simulation import Simulator
from pagedrun.paged.planning.slot_sizing import SlotSizer
from pagedrun.paged.report.record.report_sections import PlainValue
from pagedrun.paged.report.record.weight_figures import WeightFigures, weight_figures
from pagedrun.paged.text.grammar.grammars import Grammars
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.precision import DTYPE_BYTES
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling.structure import Structure

DEFAULT_SIMULATED_ROWS = 100_000
MAX_TEXT_CHARS = 60


class PlanModel:
    """A model's shape and tokenizer; implements `interfaces.OpenModel` but has no weights."""

    def __init__(self, config: EngineConfig, folder: Path, chat_template: str | None) -> None:
        shape = describe_model(config.model, config.model_impl)
        self.config = shape.held_as(config.quantization, config.model)
        self.tokenizer = Tokenizer.from_folder(folder, chat_template)
        self.config.check_tokenizer(self.tokenizer.vocab_size, config.model)
        shape = self.config
        self._grammars = Grammars.of(self.tokenizer, shape.vocab_size, shape.eos_token_ids)
        if isinstance(self.config, ModelConfig):
            num_rotary_positions(self.config, config.max_model_len, config.model)

    def refused(self, structures: Iterable[Structure]) -> dict[Structure, RowError]:
        """Return those that no answer can have, and why."""
        return self._grammars.refused(structures)

    def arithmetic(self) -> Mapping[str, object]:
        """Return nothing: a plan computes nothing."""
        return {}

    def load_engine(self) -> EngineLike:
        """Refuse: a plan runs nothing."""
        raise AssertionError("a plan loads no weights")


def plan_file(
    config: JobConfig,
    listener: JobListener,
    *,
    max_simulated_rows: int = DEFAULT_SIMULATED_ROWS,
    show_text: bool = False,
    device: DeviceFacts | None = None,
) -> PlanReport:
    """Return the forecast of the job, an object that JSON can hold.

    Raises `UsageError` for what a run would refuse as a whole. At most `max_simulated_rows` are
    simulated. Texts from the file are in it only with `show_text`. `device` is the one to plan
    for; None takes the one that a run would take.
    """
    device = device or probe_device(config.engine.device, config.engine.kernel_set)
    return _FilePlan(config, listener, device, max_simulated_rows, show_text).run()


class _FilePlan:
    """One call of `plan_file`."""

    def __init__(
        self,
        config: JobConfig,
        listener: JobListener,
        device: DeviceFacts,
        max_simulated_rows: int,
        show_text: bool,
    ) -> None:
        self._config = config
        self._listener = listener
        self._device = device
        self._max_simulated_rows = max_simulated_rows
        self._show_text = show_text
        self._times: dict[str, float] = {}
        self._refused: Counter[str] = Counter()
        self._num_clamped = 0
        self._num_voting = 0
        self._num_rows = 0
        self._began = time.perf_counter()

    def run(self) -> PlanReport:
        config = self._config
        with open_rows(config.input, config.max_line_bytes) as source:
            prepared = prepare(config, source, self._listener, PlanModel)
            self._lap("encode_s")
            forecast = self._simulate(prepared)
        model = prepared.model
        assert isinstance(model, PlanModel)
        advice = None
        if is_repeatable(config.input):
            self._listener.on_phase(Phase.PLAN)
            rows = sample_rows(config)
            advisor = TemplateAdvisor(config.prompts, config.sampling, model.tokenizer)
            advice = advisor.advise(rows, show_text=self._show_text)
            self._lap("advice_s")
        self._times["total_s"] = sum(self._times.values())
        return {
            **forecast,
            "weights": self._weights(model.config),
            "advice": advice,
            "clamped": self._num_clamped,
            "voting": self._num_voting,
            "time": self._times,
            "memory": {"peak_resident": peak_resident_bytes()},
            "config": {"model": str(config.engine.model), **_engine_flags(config.engine)},
        }

    def _weights(self, model: RunnableConfig) -> WeightFigures:
        """Return what the model's weights take, in files as far as these are there."""
        config, network = self._config.engine, model.network
        header = CheckpointHeader.read(config.model)
        stored = None if header is None else _stored_bytes(model, header)
        dtype_bytes = DTYPE_BYTES[self._device.dtypes.of_model(config.dtype, model.dtype)]
        held = network.held_bytes(dtype_bytes, packs=self._device.packs_weights)
        return weight_figures(network.num_weights, stored, held)

    def _simulate(self, prepared: Prepared) -> ForecastFigures:
        """Plan the windows one after the other and simulate them as far as is asked for."""
        config = self._config.engine
        model = prepared.model
        assert isinstance(model, PlanModel)
        device = self._device
        dtype = device.dtypes.of_model(config.dtype, model.config.dtype)
        stored = device.dtypes.of_cache(config.kv_cache_dtype, dtype)
        network = model.config.network
        specs = network.kv_cache_specs(stored or dtype)
        budget = device.budget(
            weights=network.held_bytes(DTYPE_BYTES[dtype], packs=device.packs_weights),
            activations=network.activation_bytes(
                DTYPE_BYTES[dtype],
                config.max_num_batched_tokens,
                min(config.max_num_seqs, config.max_num_batched_tokens),
            ),
            utilization=config.gpu_memory_utilization,
        )
        bytes_per_state = sum(each.num_bytes for each in network.state_specs(dtype))
        slots = SlotSizer(config, bytes_per_state, budget)
        sizer = PoolSizer(config, specs, slots.rest, prepared.max_model_len)
        sizer.check_max_model_len()
        vocab_size = model.config.vocab_size
        planner = Planner(
            config,
            RequestLimits(prepared.max_model_len, vocab_size, slots.max_beam_width),
            max_blocks=sizer.most,
            read_once=device.read_once,
            keeps_states=bytes_per_state > 0,
        )
        self._listener.on_phase(Phase.PLAN)
        requests = self._asked(prepared.rows)
        first = planner.window(requests, has_next=prepared.more is not None).plan
        sizes = sizer.sizes(first, is_whole=prepared.more is None)
        states = slots.sizes(first, is_whole=prepared.more is None)
        show = _show_with(model.tokenizer) if self._show_text else None
        forecast = Forecast(config, specs, sizes, show)

        def asked(rows: Sequence[JobRow]) -> list[Request]:
            warn_of_rows(rows, prepared.max_model_len, self._listener)
            return self._asked(rows)

        def plans() -> Iterator[Plan]:
            forecast.add(first)
            yield first
            self._lap("simulate_s")
            for window in planner.windows(map(asked, prepared.more or ())):
                forecast.add(window.plan)
                self._lap("plan_s")
                yield window.plan
                self._lap("simulate_s")

        rest = plans()
        self._lap("plan_s")
        simulation = Simulator(
            rest,
            config,
            pools=PlannedPools.of(network, specs, sizes, states),
            max_model_len=planner.reserved_len(requests),
            max_rows=self._max_simulated_rows,
            async_scheduling=device.async_scheduling,
        ).run()
        self._lap("simulate_s")
        for _ in rest:
            pass  # what is not simulated is planned all the same
        return forecast.to_dict(simulation, self._refused, self._num_rows)

    def _asked(self, rows: Sequence[JobRow]) -> list[Request]:
        self._lap("encode_s")
        self._num_rows += len(rows)
        self._refused.update(row.error.code for row in rows if row.error is not None)
        self._num_clamped += sum(row.clamped for row in rows)
        asked = [row.request for row in rows if row.request is not None]
        self._num_voting += sum(request.params.vote is not None for request in asked)
        return asked

    def _lap(self, name: str) -> None:
        """Count the time since the last lap as that of a stage."""
        now = time.perf_counter()
        self._times[name] = self._times.get(name, 0.0) + now - self._began
        self._began = now


def _engine_flags(config: EngineConfig) -> dict[str, PlainValue]:
    names = (
        "model_impl",
        "dtype",
        "max_model_len",
        "block_size",
        "num_blocks",
        "kv_cache_memory_bytes",
        "max_num_seqs",
        "max_num_batched_tokens",
        "prefix_caching",
    )
    return {name: getattr(config, name) for name in names}


def _show_with(tokenizer: Tokenizer) -> Callable[[tuple[int, ...]], str]:
    def show(token_ids: tuple[int, ...]) -> str:
        text = tokenizer.decode(list(token_ids[: MAX_TEXT_CHARS * 2]), skip_special_tokens=False)
        return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"

    return show


def _stored_bytes(model: RunnableConfig, header: CheckpointHeader) -> int:
    """Return what the weights that are read take in their files."""
    if isinstance(model, ModelConfig):
        return StoredNetwork.of(model.network, header).num_bytes
    return all_stored_bytes(header)
