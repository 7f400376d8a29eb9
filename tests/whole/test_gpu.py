"""The whole engine on the GPU's kernels: on a GPU, or interpreted where there is none.

With a GPU these are the tests of `pytest -m gpu`. Without one the kernels run in Triton's
interpreter, which computes the same and takes its time, so the files are small; the decode steps
are those of captured graphs, computed kernel by kernel.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import ReadOnce
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.device_options import CpuDtypes
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.metrics.timeline import RunHooks
from pagedrun.paged.models.streaming.residency import Residency
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.engines import load_engine
from tests.support.quantized_checkpoints import write
from tests.support.quantized_forms import PACKED
from tests.support.streamed import packed_entries, streamed_by
from tests.support.stub_gpu import StubGpu, StubTransfers, with_pool

ON_GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.usefixtures("captures_early"),
    pytest.mark.gpu if ON_GPU else pytest.mark.timeout(600),
]
NUM_GENERATED = 24 if ON_GPU else 3
NUM_TOGETHER = 16 if ON_GPU else 5  # rows that share a prefix
POOL_BYTES = 256 << 20  # so that other tests can run beside these
# In the interpreter each of these takes the better part of a minute.
thorough = [] if ON_GPU else [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model("qwen3", "gpu", head_dim=64, num_hidden_layers=1, max_position_embeddings=512)


@pytest.fixture
def device() -> Device:
    if ON_GPU:
        return choose_device("cuda")
    return Device(torch.device("cpu"), GpuBackend(), async_scheduling=True, graphs=True)


def prompts() -> list[list[int]]:
    """Rows that share more than a partition, rows of their own, and a row of one token."""
    generator = torch.Generator().manual_seed(3)
    shared = torch.randint(256, (140,), generator=generator).tolist()
    own = [torch.randint(256, (size,), generator=generator).tolist() for size in (3, 9, 17)]
    return [*([*shared, 1 + index] for index in range(NUM_TOGETHER)), *own, [7]]


def answers(
    folder: Path, device: Device, params: SamplingParams, **engine: Any
) -> list[Completion]:
    engine = {"dtype": "float32", "max_model_len": 256, **engine}
    if ON_GPU and "num_blocks" not in engine:
        engine["kv_cache_memory_bytes"] = POOL_BYTES
    config = EngineConfig(model=folder, **engine)
    loaded = load_engine(config, RunPolicy(read_once=ReadOnce(NUM_TOGETHER, 1)), device)
    requests = [Request(i, tuple(prompt), params) for i, prompt in enumerate(prompts())]
    run = loaded.start(requests, hooks=RunHooks(on_step=lambda _: run.scheduler.check()))
    got = {completion.request.index: completion for completion in run}
    ledger = run.report()["memory"]
    planned = ("decoding_room",)  # not in use: the room that a plan leaves
    sizes = cast(list[int], [size for name, size in ledger.items() if name not in planned])
    assert sum(sizes) == 2 * ledger["device_total"], ledger
    assert min(sizes) >= 0, ledger
    if device.graphs and not config.enforce_eager:
        assert run.captured_shapes, "no decode step was a graph's"
    return [got[index] for index in range(len(requests))]


GREEDY = SamplingParams(max_tokens=NUM_GENERATED, ignore_eos=True)
SAMPLED = SamplingParams(
    max_tokens=NUM_GENERATED, ignore_eos=True, temperature=0.9, top_k=40, top_p=0.9, seed=4, n=2
)


@pytest.mark.heavy("a whole run on the kernels that Triton interprets")
def test_the_tokens_of_transformers(folder: Path, device: Device) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    got = answers(folder, device, GREEDY)
    for prompt, completion in zip(prompts(), got, strict=True):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            generation_config=transformers.GenerationConfig(
                max_new_tokens=NUM_GENERATED, do_sample=False, eos_token_id=None, pad_token_id=0
            ),
        )
        assert list(completion.outputs[0].token_ids) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param({}, id="sampled", marks=thorough),
        pytest.param({"num_blocks": 24, "preemption_mode": "swap"}, id="swapped", marks=thorough),
        pytest.param({"enforce_eager": True}, id="eager", marks=thorough),
        pytest.param({"reproducible": True}, id="reproducible", marks=thorough),
    ],
)
def test_the_tokens_of_the_cpu(folder: Path, device: Device, engine: dict[str, Any]) -> None:
    """Sampled with the same numbers, forked, swapped and filtered: the same answers."""
    expected = answers(
        folder, Device(torch.device("cpu"), CpuBackend(), async_scheduling=False), SAMPLED, **engine
    )
    got = answers(folder, device, SAMPLED, **engine)
    assert [each.outputs for each in got] == [each.outputs for each in expected]


@pytest.mark.parametrize("cache", [pytest.param(name, marks=thorough) for name in ("int8", "fp8")])
def test_a_quantised_cache_gives_the_tokens_of_the_reference(
    cache: str, folder: Path, device: Device
) -> None:
    device = replace(device, dtypes=CpuDtypes())  # beside float32 too
    plain = Device(torch.device("cpu"), Backend(), async_scheduling=False)
    expected = answers(folder, plain, GREEDY, kv_cache_dtype=cache)
    got = answers(folder, device, GREEDY, kv_cache_dtype=cache)
    assert [each.outputs for each in got] == [each.outputs for each in expected]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param({"max_num_seqs": 1}, id="alone", marks=thorough),
        pytest.param(
            {"max_num_seqs": 3, "max_num_batched_tokens": 37}, id="odd chunks", marks=thorough
        ),
        pytest.param({"num_blocks": 24}, id="small pool", marks=thorough),
        pytest.param({"enforce_eager": True, "block_size": 32}, id="eager", marks=thorough),
        pytest.param({"prefix_once": False}, id="prefix alone", marks=thorough),
    ],
)
def test_the_same_bytes_whatever_runs_beside_a_row(
    setting: dict[str, Any], dtype: str, folder: Path, device: Device
) -> None:
    fixed = {"dtype": dtype, "reproducible": True}
    expected = answers(folder, device, SAMPLED, **fixed)
    got = answers(folder, device, SAMPLED, **fixed, **setting)
    assert [each.outputs for each in got] == [each.outputs for each in expected]


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_logits_in_bfloat16_stay_close_to_those_in_float32(folder: Path, device: Device) -> None:
    """Rounding to 8 bits of mantissa, a layer deep: what is between them is noise, not an error."""
    narrow, wide = (
        load_engine(
            EngineConfig(model=folder, dtype=dtype, kv_cache_memory_bytes=POOL_BYTES), device=device
        )
        for dtype in ("bfloat16", "float32")
    )
    for prompt in prompts():
        seen = [first_logits(engine, prompt) for engine in (narrow, wide)]
        error = (seen[0].float() - seen[1].float()).abs().max() / seen[1].float().std()
        assert error < 0.1


def first_logits(engine: Engine, prompt: list[int]) -> torch.Tensor:
    """Return the logits behind a prompt, [vocab_size]."""
    kept: list[torch.Tensor] = []
    model, compute = engine.loaded.model, engine.loaded.model.head

    def head(hidden: torch.Tensor) -> torch.Tensor:
        kept.append(compute(hidden))
        return kept[-1]

    model.head = head  # type: ignore[method-assign]
    list(engine.start([Request(0, tuple(prompt), SamplingParams(max_tokens=1, ignore_eos=True))]))
    model.head = compute  # type: ignore[method-assign]
    return kept[-1][-1].cpu()


@pytest.mark.heavy("whole runs on the kernels that Triton interprets")
@pytest.mark.parametrize(
    ("model", "form"),
    [
        pytest.param("qwen3", None, marks=thorough),
        ("qwen3_moe", None),
        pytest.param("qwen3", "awq", marks=thorough),
    ],
    ids=str,
)
def test_streamed_weights(
    model: str, form: str | None, make_model: MakeModel, tmp_path: Path
) -> None:
    """Plain layers, experts, and layers that stay in four bits, copied to the GPU in each pass."""
    # Rows of whole steps of the layout: padded ones would not be smaller than the planned weights.
    folder = make_model(model, "streamed", num_hidden_layers=2, hidden_size=128)
    if form is not None:
        quantization, writer = PACKED[form]
        write(folder, tmp_path / "model", quantization, writer)
        folder = tmp_path / "model"
    packed = tmp_path / "packed"
    config = EngineConfig.fitting(
        model=folder,
        dtype="float16",
        packed_dir=packed,
        reproducible=True,
        kv_cache_memory_bytes=POOL_BYTES if ON_GPU else None,
    )
    requests = [Request(0, (1, 2, 3, 4), SamplingParams(max_tokens=NUM_GENERATED))]

    def loaded(**settings: Any) -> Engine:
        device = choose_device("cuda") if ON_GPU else StubGpu.of(GpuBackend(), StubTransfers())
        engine = load_engine(replace(config, **settings), device=device)
        return engine if ON_GPU else with_pool(engine)

    def answers(engine: Engine) -> list[Any]:
        return [each.outputs for each in engine.start(requests)]

    expected = answers(loaded())
    with pytest.raises(UsageError, match="needs at least"):
        loaded(weights_memory=1)
    sizes = [each.num_bytes for each in packed_entries(packed)]
    engine = loaded(weights_memory=Residency.least_bytes(sizes))
    assert answers(engine) == expected
    streamed = streamed_by(engine)
    assert streamed.on_host is not None
    assert streamed.figures.num_bytes >= NUM_GENERATED * streamed.residency.pass_bytes > 0
