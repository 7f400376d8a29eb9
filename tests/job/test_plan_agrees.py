"""`plan` says what `generate` will report, on every device, and refuses what it refuses."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.device_facts import DeviceFacts, DeviceMemory, probe_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.model import LocalModel
from pagedrun.paged.job.planned.plan_file import plan_file
from pagedrun.paged.job.progress import JobListener
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.values.engine_config import FITTED, EngineConfig, WindowSize
from pagedrun.paged.values.errors import UsageError
from tests.conftest import MakeModel
from tests.support.every_pair import every_pair
from tests.support.jsonl import write_jsonl
from tests.support.plan_jobs import LAYERS, assert_told, generated_rows, job

NUM_ROWS = 66
GPU = DeviceMemory(total=6_000_000, free=5_900_000)  # room for less than the rows would take


def gpu_facts() -> DeviceFacts:
    """A GPU that is not there: the memory is made up, the kernels are those of the processor."""
    return DeviceFacts(choose_device("cpu").read_once, async_scheduling=True, memory=GPU)


class ModelOnGpu(LocalModel):
    """Runs on the processor's kernels, one step behind, in the memory of that GPU."""

    def load_engine(self) -> Engine:
        config = self.settings
        device = replace(choose_device("cpu"), async_scheduling=True)
        loaded = LoadedModel.load(config, self.config, self.tokenizer, device=device)
        model = loaded.model
        budget = MemoryBudget.of_device(
            total=GPU.total,
            free=GPU.free - model.num_bytes,
            activations=model.activation_bytes(
                config.max_num_batched_tokens,
                min(config.max_num_seqs, config.max_num_batched_tokens),
            ),
            utilization=config.gpu_memory_utilization,
        )
        memory = PoolMemory(model, loaded.sampler, device, budget)
        return Engine(config, replace(loaded, memory=memory))


def told_and_done(config: JobConfig, device: str) -> tuple[Any, Any]:
    """The forecast and the report of the same job."""
    if device == "gpu":
        forecast = plan_file(config, JobListener(), device=gpu_facts())
        return forecast, run_job(config, open_model=ModelOnGpu).report
    return plan_file(config, JobListener()), run_job(config).report


@every_pair(
    device=["auto", "cpu", "gpu"],
    dtype=["auto", "float32", "bfloat16"],
    pool=[
        {},
        {"num_blocks": 60},
        {"kv_cache_memory_bytes": 2_000_000},
        {"num_blocks": 45, "preemption_mode": "recompute"},
        {"block_size": 8, "gpu_memory_utilization": 0.7},
        {"max_num_seqs": 5, "max_model_len": 300},
        {"prefix_caching": False, "max_num_batched_tokens": 100},
    ],
    window_rows=[1000, 54, 24],
)
def test_a_plan_says_what_a_run_reports(
    make_model: MakeModel,
    tmp_path: Path,
    device: str,
    dtype: str,
    pool: dict[str, Any],
    window_rows: int,
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", generated_rows(NUM_ROWS, seed=window_rows))
    model = make_model("qwen3", "agrees", tie_word_embeddings=False)
    asked = "cpu" if device == "gpu" else device  # what torch finds here
    size = WindowSize(rows=window_rows)
    config = job(path, model, device=asked, window=size, **{"dtype": dtype, **pool})
    forecast, report = told_and_done(config, device)
    assert forecast["rows"]["is_simulated_whole"]
    assert_told(forecast, report)
    assert forecast["weights"] == report["weights"]
    assert report["rows"]["total"] == NUM_ROWS


@pytest.mark.parametrize("layers", ["both", "windows"])
@pytest.mark.parametrize(
    "pool",
    [
        {},
        {"num_blocks": 45},
        {"kv_cache_memory_bytes": 1_500_000, "preemption_mode": "recompute"},
        {"max_num_seqs": 7, "max_num_batched_tokens": 60, "block_size": 8},
    ],
    ids=str,
)
def test_a_plan_of_windows_says_what_a_run_reports(
    make_model: MakeModel, tmp_path: Path, layers: str, pool: dict[str, Any]
) -> None:
    """Group by group; and where rows neither branch off nor give way, a window takes no more than
    its tokens and those of the steps' chunks, with a block for the edges of each sequence."""
    path = write_jsonl(tmp_path / "rows.jsonl", generated_rows(60, seed=3))
    family, changes = LAYERS[layers]
    config = job(path, make_model(family, "agrees", **changes), device="cpu", **pool)
    forecast, report = told_and_done(config, "cpu")
    assert_told(forecast, report)
    assert forecast["weights"] == report["weights"]
    assert forecast["prefix"]["bytes_saved"] == report["prefix"]["bytes_saved"]
    full, windowed = report["kv"]["groups"]
    assert (full["window"], windowed["window"]) == (None, 50)
    assert sum(each["pool_bytes"] for each in (full, windowed)) == report["kv"]["pool_bytes"]
    assert report["kv"]["pool_bytes"] == report["memory"]["kv_pool"]
    assert windowed["peak_blocks"] <= windowed["num_blocks"] <= full["num_blocks"]
    engine = config.engine
    running = forecast["steps"]["max_running"]
    size, chunks = engine.block_size, 2 * engine.max_num_batched_tokens
    assert windowed["peak_blocks"] <= (running * (50 - 1) + chunks) / size + 2 * running


def rows(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "rows.jsonl", generated_rows(40))


def test_auto_is_the_device_that_a_run_takes(tmp_path: Path) -> None:
    """A driver that is there is asked; without one, nobody imports torch to learn it."""
    driver = tmp_path / "driver"
    asked: list[str] = []

    def choose(device: str, kernel_set: str, activations: str) -> DeviceFacts:
        asked.append(device)
        return gpu_facts()

    assert probe_device("auto", "auto", driver_files=[driver], choose=choose).memory is None
    driver.touch()
    assert probe_device("cpu", "auto", driver_files=[driver], choose=choose).memory is None
    assert asked == []
    assert probe_device("auto", "auto", driver_files=[driver], choose=choose).memory == GPU
    assert probe_device("cuda", "auto", driver_files=[], choose=choose).memory == GPU
    assert asked == ["auto", "cuda"]


def test_a_gpu_that_is_not_there_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    try:
        choose_device("cuda")
    except UsageError as error:
        refusal = str(error)
    else:
        pytest.skip("there is a GPU")
    config = job(rows(tmp_path), make_model("qwen3", "agrees"), device="cuda")
    with pytest.raises(UsageError) as refused:
        plan_file(config, JobListener())
    assert str(refused.value) == refusal


def test_the_pool_of_a_gpu_is_sized_by_its_own_memory(
    make_model: MakeModel, tmp_path: Path
) -> None:
    config = job(rows(tmp_path), make_model("qwen3", "agrees"), max_model_len=200)
    on_gpu = plan_file(config, JobListener(), device=gpu_facts())["kv"]
    on_host = plan_file(config, JobListener())["kv"]
    assert on_gpu["pool_bytes"] < GPU.total
    assert on_gpu["num_blocks"] != on_host["num_blocks"]
    half = replace(gpu_facts(), memory=replace(GPU, free=GPU.free // 2))
    assert (
        plan_file(config, JobListener(), device=half)["kv"]["num_blocks"] < (on_gpu["num_blocks"])
    )


@pytest.mark.parametrize(
    "flags",
    [
        {"num_blocks": 4, "max_model_len": 100},
        {"kv_cache_memory_bytes": 100_000, "max_model_len": 1000},
        {"max_model_len": 10_000},
    ],
    ids=str,
)
def test_a_length_that_a_run_refuses_is_refused(
    make_model: MakeModel, tmp_path: Path, flags: dict[str, Any]
) -> None:
    config = job(rows(tmp_path), make_model("qwen3", "agrees"), **flags)
    doings: list[Callable[[], object]] = [
        lambda: run_job(config),
        lambda: plan_file(config, JobListener()),
    ]
    refusals = []
    for doing in doings:
        with pytest.raises(UsageError, match="max_model_len") as refused:
            doing()
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]


FITTED_GPU = DeviceMemory(total=60_000_000, free=59_000_000)


@dataclass(frozen=True, slots=True)
class HostAsGpu(Device):
    """The processor, with a GPU's own memory."""

    @property
    def memory_bytes(self) -> int:
        return FITTED_GPU.total


class FittedModel(ModelOnGpu):
    """Runs on it, one step behind."""

    def load_engine(self) -> Engine:
        loaded = super().load_engine().loaded
        host = replace(choose_device("cpu"), async_scheduling=True)
        device = HostAsGpu(**{each.name: getattr(host, each.name) for each in fields(Device)})
        config = Engine(self.settings, replace(loaded, device=device)).config
        budget = MemoryBudget.of_device(
            total=FITTED_GPU.total,
            free=FITTED_GPU.free - loaded.model.num_bytes,
            activations=loaded.model.activation_bytes(
                config.max_num_batched_tokens, config.max_num_seqs
            ),
            utilization=config.gpu_memory_utilization,
        )
        memory = PoolMemory(loaded.model, loaded.sampler, device, budget)
        return Engine(self.settings, replace(loaded, device=device, memory=memory))


@pytest.mark.parametrize(
    "given", [{}, {"max_num_seqs": 7}, {"block_size": 16, "refill_share": 0.0}], ids=str
)
def test_a_plan_for_a_gpu_fits_what_nobody_gave_as_a_run_does(
    make_model: MakeModel, tmp_path: Path, given: dict[str, Any]
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", generated_rows(NUM_ROWS, seed=3))
    model = make_model("qwen3", "fitted", tie_word_embeddings=False)
    config = job(path, model, device="cpu", window=WindowSize(rows=60))
    engine = EngineConfig.fitting(model=model, device="cpu", speculate="off", **given)
    config = replace(config, engine=engine)
    facts = DeviceFacts(choose_device("cpu").read_once, async_scheduling=True, memory=FITTED_GPU)
    forecast: Any = plan_file(config, JobListener(), device=facts)
    report: Any = run_job(config, open_model=FittedModel).report
    for name in FITTED:
        assert forecast["config"][name] == report["config"][name], name
        assert (name in report["config"]["fitted"].split(", ")) == (name not in given)
        assert name not in given or report["config"][name] == given[name]
    assert forecast["config"]["fitted"] == report["config"]["fitted"]
    assert_told(forecast, report)
    assert 64 <= report["config"]["max_num_seqs"] <= 1024 or "max_num_seqs" in given
    assert sum(forecast["decoding"].values()) == report["memory"]["decoding_room"] > 0
