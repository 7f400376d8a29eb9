"""Plan a file: everything that a run would do with it but the arithmetic.

Needs the tokenizer and the model's config; no weights are read and torch is not imported.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pagedrun.kernels.read_once import ON_GPU
from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.execution.device_dtypes import CpuDtypes, DeviceDtypes, GpuDtypes
from pagedrun.paged.execution.kernel_choice import choose_kernel_set
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.reader import is_repeatable, open_rows
from pagedrun.paged.job.interfaces import EngineLike
from pagedrun.paged.job.listener import JobListener, Phase
from pagedrun.paged.job.prepare import Prepared, prepare
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.job.prompts.template_advice import TemplateAdvisor
from pagedrun.paged.job.row_sample import sample_rows
from pagedrun.paged.models.kv_cache_specs import kv_cache_specs
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.parameters import parameter_shapes
from pagedrun.paged.planning.memory import (
    MemoryBudget,
    choose_num_blocks,
    most_blocks_in_use,
    peak_resident_bytes,
)
from pagedrun.paged.planning.plan import Plan, PlanEnd
from pagedrun.paged.planning.preview.forecast import Forecast
from pagedrun.paged.planning.preview.simulation import Simulator
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.precision import DTYPE_BYTES
from pagedrun.paged.values.request import Request

DEFAULT_SIMULATED_ROWS = 100_000
MAX_TEXT_CHARS = 60


class PlanModel:
    """A model's shape and tokenizer; implements `interfaces.OpenModel` but has no weights."""

    def __init__(self, config: EngineConfig, folder: Path, chat_template: str | None) -> None:
        self.config = ModelConfig.from_folder(config.model)
        self.tokenizer = Tokenizer.from_folder(folder, chat_template)
        self.config.check_tokenizer(self.tokenizer.vocab_size, config.model)

    def arithmetic(self) -> dict[str, Any]:
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
) -> dict[str, Any]:
    """Return the forecast of the job, an object that JSON can hold.

    Raises `UsageError` for what a run would refuse as a whole. At most `max_simulated_rows` are
    simulated. Texts from the file are in it only with `show_text`.
    """
    return _FilePlan(config, listener, max_simulated_rows, show_text).run()


class _FilePlan:
    """One call of `plan_file`."""

    def __init__(
        self, config: JobConfig, listener: JobListener, max_simulated_rows: int, show_text: bool
    ) -> None:
        self._config = config
        self._listener = listener
        self._max_simulated_rows = max_simulated_rows
        self._show_text = show_text
        self._times: dict[str, float] = {}
        self._refused: Counter[str] = Counter()
        self._num_clamped = 0
        self._num_rows = 0
        self._began = time.perf_counter()
        engine = config.engine
        self._read_once = ON_GPU
        if engine.device != "cuda":
            self._read_once = choose_kernel_set(engine.kernel_set).read_once

    def run(self) -> dict[str, Any]:
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
            "advice": advice,
            "clamped": self._num_clamped,
            "time": self._times,
            "memory": {"peak_resident": peak_resident_bytes()},
            "config": {"model": str(config.engine.model), **_engine_flags(config.engine)},
        }

    def _simulate(self, prepared: Prepared) -> dict[str, Any]:
        """Plan the windows one after the other and simulate them as far as is asked for."""
        config = self._config.engine
        model = prepared.model
        assert isinstance(model, PlanModel)
        kv = _kv_cache_spec(config, model.config)
        requests = self._asked(prepared.rows)
        most = _num_blocks(config, model.config, kv, sys.maxsize)
        self._listener.on_phase(Phase.PLAN)
        has_more = prepared.more is not None
        first = self._plan(requests, most, after=None, has_next=has_more)
        needed = most if has_more else first.num_blocks_needed(config.max_num_seqs)
        longest = prepared.max_model_len
        usable = most_blocks_in_use(config.max_num_seqs, longest, config.block_size)
        num_blocks = _num_blocks(config, model.config, kv, max(min(needed, usable), 1))
        show = _show_with(model.tokenizer) if self._show_text else None
        forecast = Forecast(config, kv, num_blocks, show)
        contiguous = _contiguous_len(requests, config, longest)

        def plans() -> Iterator[Plan]:
            forecast.add(first)
            yield first
            after = first.end
            for rows in prepared.more or ():
                self._lap("encode_s")
                plan = self._plan(self._asked(rows), most, after=after, has_next=True)
                after = plan.end
                forecast.add(plan)
                yield plan

        rest = plans()
        self._lap("plan_s")
        simulation = Simulator(
            rest,
            config,
            num_blocks=num_blocks,
            bytes_per_token=kv.bytes_per_token,
            max_model_len=contiguous,
            windows=model.config.windows,
            max_rows=self._max_simulated_rows,
        ).run()
        self._lap("simulate_s")
        for _ in rest:
            pass  # what is not simulated is planned all the same
        return forecast.to_dict(simulation, self._refused, self._num_rows)

    def _asked(self, rows: Sequence[JobRow]) -> list[Request]:
        self._num_rows += len(rows)
        self._refused.update(row.error.code for row in rows if row.error is not None)
        self._num_clamped += sum(row.clamped for row in rows)
        return [row.request for row in rows if row.request is not None]

    def _plan(
        self, requests: Sequence[Request], most: int, after: PlanEnd | None, has_next: bool
    ) -> Plan:
        config = self._config.engine
        plan = Plan(
            requests,
            config.block_size,
            prefix_caching=config.prefix_caching,
            max_blocks=most,
            after=after,
            has_next=has_next,
            read_once=self._read_once,
        )
        self._lap("plan_s")
        return plan

    def _lap(self, name: str) -> None:
        """Count the time since the last lap as that of a stage."""
        now = time.perf_counter()
        self._times[name] = self._times.get(name, 0.0) + now - self._began
        self._began = now


def _kv_cache_spec(config: EngineConfig, model: ModelConfig) -> KVCacheSpec:
    dtypes = _dtypes(config)
    dtype = dtypes.of_model(config.dtype, model.dtype)
    [spec] = kv_cache_specs(model, dtypes.of_cache(config.kv_cache_dtype, dtype) or dtype)
    return spec


def _dtypes(config: EngineConfig) -> DeviceDtypes:
    return GpuDtypes() if config.device == "cuda" else CpuDtypes()


def _num_blocks(config: EngineConfig, model: ModelConfig, kv: KVCacheSpec, needed: int) -> int:
    """Return the size of the pool that a run would choose, its weights being loaded by then."""
    dtype = _dtypes(config).of_model(config.dtype, model.dtype)
    weights = sum(map(math.prod, parameter_shapes(model).values())) * DTYPE_BYTES[dtype]
    return choose_num_blocks(
        bytes_per_block=kv.bytes_per_token * config.block_size,
        num_needed=needed,
        num_blocks=config.num_blocks,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        budget=MemoryBudget.of_host(taken=weights),
    )


def _contiguous_len(requests: Sequence[Request], config: EngineConfig, max_model_len: int) -> int:
    """Return what an engine that reserves one length for all rows would have to reserve."""
    lengths = (len(each.prompt_token_ids) + each.params.max_tokens for each in requests)
    return config.max_model_len or min(max(lengths, default=1), max_model_len)


def _engine_flags(config: EngineConfig) -> dict[str, Any]:
    names = (
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
