"""Models whose weights stay in few bits on a GPU: what is held, what a plan says, and the answers.

Without a GPU its kernels are interpreted, on tensors of the host.
"""

import shutil
from pathlib import Path

import pytest
import torch

from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend
from pagedrun.kernels.partition import ON_GPU
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.device_facts import DeviceFacts, DeviceMemory
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.model_config import ModelConfig, describe_model
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.models.quant.mxfp4 import folders as mxfp4_folders  # noqa: F401 - a fixture
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair
from tests.support.gguf_writer import mixed, wide, write_gguf
from tests.support.quantized_checkpoints import write, write_plain
from tests.support.quantized_forms import HELD

GPU = Device(torch.device("cpu"), GpuBackend(), async_scheduling=False)
PLAIN = Device(torch.device("cpu"), Backend(), async_scheduling=False)


def held(model: Path, dtype: str = "bfloat16", tokenizer: Path | None = None) -> int:
    """Return the bytes of a model's weights on the GPU's kernels; a plan must say the same."""
    asked = EngineConfig(model=model, dtype=dtype, device="cpu")
    shape = describe_model(model, asked.model_impl)
    words = Tokenizer.from_folder(tokenizer or model)
    loaded = LoadedModel.load(asked, shape, words, device=GPU)
    config, header = ModelConfig.from_folder(model), CheckpointHeader.read(model)
    facts = DeviceFacts(ON_GPU, memory=DeviceMemory(1 << 34, 1 << 34), code_kernels=CodeKernels.GPU)
    assert PlannedWeights(config, header, dtype, facts).held_bytes == loaded.model.num_bytes
    return loaded.model.num_bytes


@pytest.mark.parametrize("form", HELD)
def test_layers_are_held_in_few_bits(form: str, make_model: MakeModel, tmp_path: Path) -> None:
    """One projection is stored in plain numbers, beside others that are not."""
    quantization, writer, share = HELD[form]
    dense = make_model("qwen2", "quantized", tie_word_embeddings=False)
    meant = write(dense, tmp_path / "codes", quantization, writer, keeps="v_proj")
    write_plain(dense, tmp_path / "plain", meant)
    in_codes, plain = (held(tmp_path / each) for each in ("codes", "plain"))
    packed = sum(weight.numel() for name, weight in meant.items() if "v_proj" not in name)
    assert plain - in_codes >= (1 - share) * 2 * packed
    assert held(tmp_path / "codes", "float32") == held(tmp_path / "plain", "float32")


@every_pair(
    in_turn="family",
    form=["fp8", "awq", "pack-quantized", "int-quantized"],
    family=["qwen3_moe", "qwen2_moe"],
)
def test_experts_are_held_in_few_bits(
    family: str, form: str, make_model: MakeModel, tmp_path: Path
) -> None:
    quantization, writer, share = HELD[form]
    dense = make_model(family, "quantized")
    meant = write(dense, tmp_path / "codes", quantization, writer)
    write_plain(dense, tmp_path / "plain", meant)
    in_codes, plain = (held(tmp_path / each) for each in ("codes", "plain"))
    packed = sum(weight.numel() for weight in meant.values())
    assert plain - in_codes >= (1 - share - 0.08) * 2 * packed


def test_experts_in_mxfp4_are(mxfp4_folders: dict[str, Path]) -> None:  # noqa: F811
    in_codes, plain = (held(mxfp4_folders[each]) for each in ("mxfp4", "plain"))
    layers = ModelConfig.from_folder(mxfp4_folders["plain"]).network.num_layers
    assert plain - in_codes == layers * 8 * 3 * 64 * 64 * (2 - 4.25 / 8)


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_keeps_embedding_and_head_in_few_bits(
    tied: bool, make_model: MakeModel, tmp_path: Path
) -> None:
    folder = wide(make_model, "llama", tie_word_embeddings=tied)
    write_gguf(folder, tmp_path / "model.gguf", mixed)
    assert held(tmp_path / "model.gguf", tokenizer=folder) < 0.45 * held(folder)


def first_logprobs(model: Path, device: Device) -> dict[int, float]:
    """Return the log-probabilities of the likeliest tokens behind a prompt."""
    config = EngineConfig(model=model, dtype="bfloat16", device="cpu", enforce_eager=True)
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=5)
    [done] = load_engine(config, device=device).start([Request(0, (7, 8, 9, 10), params)])
    logprobs = done.outputs[0].logprobs
    assert logprobs is not None
    return {each.token_id: each.logprob for each in logprobs[0].top}


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_answers_are_those_of_the_plain_model(
    family: str, make_model: MakeModel, tmp_path: Path
) -> None:
    quantization, writer, _ = HELD["awq"]
    dense = make_model(family, "one-layer", num_hidden_layers=1)
    write_plain(dense, tmp_path / "plain", write(dense, tmp_path / "codes", quantization, writer))
    found = first_logprobs(tmp_path / "codes", GPU)
    expected = first_logprobs(tmp_path / "plain", PLAIN)
    assert found.keys() & expected.keys()
    for token in found.keys() & expected.keys():
        assert found[token] == pytest.approx(expected[token], abs=0.05)  # logits are bfloat16
    shutil.rmtree(tmp_path / "plain")
