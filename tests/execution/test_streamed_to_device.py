"""Weights streamed to a device of its own memory: the same bytes as with all of them there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import ON_GPU
from pagedrun.paged.execution.device_facts import DeviceFacts, DeviceMemory
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.streaming.residency import Residency
from pagedrun.paged.planning.memory import STREAMED_SHARE, HostMemory
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair
from tests.support.streamed import packed_entries, streamed_by
from tests.support.stub_gpu import StubGpu, StubTransfers, with_pool

GREEDY = SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2)
DRAWN = replace(GREEDY, temperature=1.0, seed=3, n=2)
PROMPTS = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate((5, 60, 19))]


def answers(engine: Engine, prompts: list[list[int]] = PROMPTS) -> list[Any]:
    params = [GREEDY, DRAWN]
    requests = [
        Request(index, tuple(prompt), params[index % 2]) for index, prompt in enumerate(prompts)
    ]
    done = sorted(engine.start(requests), key=lambda each: each.request.index)
    return [each.outputs for each in done]


def on_gpu(config: EngineConfig, stub: StubTransfers, free: int = 2**30) -> Engine:
    return with_pool(load_engine(config, device=StubGpu.of(Backend(), stub, free)))


def packed_sizes(config: EngineConfig) -> list[int]:
    """Pack the weights for the device and return their sizes."""
    with pytest.raises(UsageError, match="needs at least"):
        on_gpu(replace(config, weights_memory=1), StubTransfers())
    assert config.packed_dir is not None
    return [each.num_bytes for each in packed_entries(config.packed_dir)]


def deep(make_model: MakeModel, tmp_path: Path, **flags: Any) -> EngineConfig:
    folder = make_model("qwen3", "deep", num_hidden_layers=9)
    packed = tmp_path / "packed"
    return EngineConfig.fitting(model=folder, dtype="float32", packed_dir=packed, **flags)


@every_pair(is_late=[True, False], share=[0.0, 0.3], flags=[{}, {"quantization": "int8"}])
def test_host_to_device(
    flags: dict[str, Any], share: float, is_late: bool, make_model: MakeModel, tmp_path: Path
) -> None:
    config = deep(make_model, tmp_path, **flags)
    stub = StubTransfers(is_late=is_late)
    expected = answers(on_gpu(config, stub))
    assert not stub.num_copies, "all weights are on the device"
    sizes = packed_sizes(config)
    num_bytes = Residency.least_bytes(sizes) + int(share * sum(sizes))
    engine = on_gpu(replace(config, weights_memory=num_bytes), stub)
    streamed = streamed_by(engine)
    assert stub.device_bytes <= num_bytes
    assert stub.locked_bytes >= streamed.residency.pass_bytes, "the host has room for all of them"
    assert streamed.on_host is not None
    assert streamed.on_host.num_streamed == 0
    loaded_bytes = stub.num_bytes
    assert answers(engine) == expected
    assert stub.num_bytes - loaded_bytes == streamed.figures.num_bytes
    assert streamed.figures.num_bytes >= 5 * streamed.residency.pass_bytes > 0


@pytest.mark.parametrize("is_late", [True, False])
def test_disk_to_host_to_device(
    is_late: bool, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = deep(make_model, tmp_path)
    stub = StubTransfers(is_late=is_late)
    expected = answers(on_gpu(config, stub))
    sizes = packed_sizes(config)
    config = replace(config, weights_memory=Residency.least_bytes(sizes))
    monkeypatch.setattr(HostMemory, "read", lambda: HostMemory(2**33, sum(sizes)))
    engine = on_gpu(config, stub)
    streamed = streamed_by(engine)
    assert streamed.on_host is not None
    assert 0 < streamed.on_host.num_streamed < streamed.residency.num_streamed
    assert answers(engine) == expected
    assert streamed.figures.read_s > 0.0


def test_a_model_larger_than_the_device_is_streamed(make_model: MakeModel, tmp_path: Path) -> None:
    config = deep(make_model, tmp_path)
    stub = StubTransfers()
    expected = answers(on_gpu(config, stub))
    sizes = packed_sizes(config)
    free = int(0.9 * sum(sizes))
    engine = on_gpu(config, StubTransfers(), free=free)
    residency = streamed_by(engine).residency
    assert residency.num_streamed > 0
    assert residency.pinned_bytes + residency.ring_bytes <= STREAMED_SHARE * free
    assert answers(engine) == expected


def test_a_model_that_leaves_a_small_pool_is_not_streamed(
    make_model: MakeModel, tmp_path: Path
) -> None:
    config = deep(make_model, tmp_path)
    sizes = packed_sizes(config)
    stub = StubTransfers()
    engine = on_gpu(config, stub, free=int(sum(sizes) / 0.88))
    assert engine.loaded.model.streamed is None
    assert not stub.device_bytes
    smaller = replace(config, gpu_memory_utilization=0.8)
    assert on_gpu(smaller, stub, free=int(sum(sizes) / 0.88)).loaded.model.streamed is not None


def test_the_report_of_a_device(make_model: MakeModel, tmp_path: Path) -> None:
    config = deep(make_model, tmp_path)
    sizes = packed_sizes(config)
    config = replace(config, weights_memory=Residency.least_bytes(sizes))
    engine = on_gpu(config, StubTransfers())
    run = engine.start([Request(0, tuple(PROMPTS[0]), GREEDY)])
    assert len(list(run)) == 1
    weights = run.report()["weights"]
    residency = streamed_by(engine).residency
    assert weights["streamed_bytes"] == residency.pass_bytes
    assert weights["bytes_read"] >= weights["passes"] * residency.pass_bytes > 0
    assert weights["wait_share"] == 0.0
    assert run.report()["streaming"]["host_bytes"] == residency.pass_bytes


def test_a_plan_knows_the_residency_of_a_run(make_model: MakeModel, tmp_path: Path) -> None:
    config = deep(make_model, tmp_path)
    sizes = packed_sizes(config)
    config = replace(config, weights_memory=Residency.least_bytes(sizes) + sizes[0])
    engine = on_gpu(config, StubTransfers())
    streamed, device = streamed_by(engine), engine.loaded.device
    facts = DeviceFacts(
        ON_GPU,
        memory=DeviceMemory(2**30, 2**30),
        gpu_arithmetic=device.arithmetic("float32"),
    )
    header = CheckpointHeader.read(config.model)
    planned = PlannedWeights(engine.loaded.config, header, "float32", facts)
    passes = planned.passes(config)
    assert passes is not None
    assert passes.residency == streamed.residency
    assert passes.speeds == streamed.speeds
    assert passes.speeds is not None
    assert passes.speeds.copied_per_s is not None
    assert passes.read_s == streamed.residency.pass_bytes / passes.speeds.copied_per_s
    assert planned.held_bytes == engine.loaded.model.num_bytes
