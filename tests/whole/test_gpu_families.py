"""Every family, encoders and packed weights on the GPU's kernels, against the CPU's.

With a GPU these are tests of `pytest -m gpu`; without one the kernels are interpreted, which takes
minutes, so they are `long`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    import os

    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.quantized_form import Activations
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.run import RunPolicy
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request, SampleOutput
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.engines import ANY_PREFIX, load_engine
from tests.support.families import RECURRENT, TINY, save_tiny
from tests.support.mixture_families import MIXTURES
from tests.support.pooled_engines import pooled_model, requests, results
from tests.support.quantized_checkpoints import write
from tests.support.quantized_forms import PACKED
from tests.support.tiny_encoders import FAMILIES as ENCODERS
from tests.support.tiny_encoders import texts, write_model

ON_GPU = torch.cuda.is_available()
NUM_TOKENS = 12 if ON_GPU else 3
pytestmark = [
    pytest.mark.usefixtures("captures_early"),
    *([pytest.mark.gpu] if ON_GPU else [pytest.mark.long, pytest.mark.timeout(900)]),
]
MODELS = {**TINY, **RECURRENT, **MIXTURES}


def gpu() -> Device:
    if ON_GPU:
        return choose_device("cuda")
    return Device(torch.device("cpu"), GpuBackend(), async_scheduling=True, graphs=True)


def cpu(activations: Activations = Activations.AUTO) -> Device:
    kernels = CpuBackend(activations=activations)
    return Device(torch.device("cpu"), kernels, async_scheduling=False)


def prompts() -> list[list[int]]:
    """Rows of their own, and rows that share more than a partition."""
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(250, (130,), generator=generator).tolist()
    own = [torch.randint(250, (size,), generator=generator).tolist() for size in (1, 40)]
    return [*([*shared, index] for index in range(16 if ON_GPU else 2)), *own]


def answers(folder: Path, device: Device, **engine: Any) -> list[tuple[SampleOutput, ...]]:
    fixed = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_bytes": 64 << 20}
    config = EngineConfig(model=folder, **{**fixed, **engine})
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    asked = [Request(index, tuple(each), params) for index, each in enumerate(prompts())]
    run = load_engine(config, RunPolicy(read_once=ANY_PREFIX), device).start(asked)
    got = {each.request.index: each.outputs for each in run}
    return [got[each.index] for each in asked]


@pytest.mark.parametrize("name", MODELS)
def test_a_family_has_the_tokens_of_the_cpu(name: str, tmp_path: Path) -> None:
    save_tiny(MODELS[name], tmp_path)
    assert answers(tmp_path, gpu()) == answers(tmp_path, cpu())


@pytest.mark.parametrize("form", PACKED)
def test_packed_weights_have_the_tokens_of_the_cpu(
    form: str, make_model: MakeModel, tmp_path: Path
) -> None:
    """In float32 the products differ by their order of summation alone."""
    write(make_model("qwen3", "packed"), tmp_path / "model", *PACKED[form])
    exact = cpu(Activations.EXACT)
    assert answers(tmp_path / "model", gpu()) == answers(tmp_path / "model", exact)


@pytest.mark.parametrize("draft", ["auto", "3"])
def test_drafts_change_no_token(draft: str, make_model: MakeModel) -> None:
    """A GPU drafts with products of our own only, whose rows do not depend on their number."""
    folder = make_model("qwen3", "drafts", num_hidden_layers=1)
    fixed = {"reproducible": True, "dtype": "bfloat16"}
    expected = answers(folder, gpu(), **fixed, speculate="off")
    assert answers(folder, gpu(), **fixed, speculate=draft) == expected


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("family", ENCODERS)
def test_vectors_are_close_to_those_of_the_cpu(family: str, tmp_path: Path) -> None:
    write_model(tmp_path, family)
    given = texts([1, 17, 64, 150])
    found = []
    for device in ("cuda", "cpu"):
        model = pooled_model(tmp_path, engine={"device": device})
        found.append(results(model.load_engine(), requests(model, given)))
    for index in range(len(given)):
        assert np.abs(found[0][index] - found[1][index]).max() <= 1e-5


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("family", ENCODERS)
def test_a_text_has_the_same_bytes_alone(family: str, tmp_path: Path) -> None:
    write_model(tmp_path, family)
    given = texts([1, 17, 64, 150])
    model = pooled_model(tmp_path, engine={"device": "cuda", "reproducible": True})
    engine, asked = model.load_engine(), requests(model, given)
    together = results(engine, asked)
    for request in asked:
        [alone] = results(engine, [request]).values()
        assert np.array_equal(alone, together[request.index])
