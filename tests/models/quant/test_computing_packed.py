"""Models whose weights stay in few bits say what they say in plain numbers, in less memory."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from pagedrun import LLM, SamplingParams
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.partition import NEVER
from pagedrun.paged.execution.device_facts import DeviceFacts
from pagedrun.paged.job.planned.planned_weights import PlannedWeights
from pagedrun.paged.models.checkpoint.header import CheckpointHeader
from pagedrun.paged.models.model_config import ModelConfig
from tests.conftest import MakeModel
from tests.support.gguf_writer import mixed, wide, write_gguf
from tests.support.kernel_cases import skip_unless_supported
from tests.support.quantized_checkpoints import write, write_plain
from tests.support.quantized_forms import HELD

CLOSE = 0.1  # of log-probabilities: one or two last bits of logits in bfloat16
PROMPTS = [[7, 8, 9], list(range(3, 40)), [5] * 18]
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3)


@pytest.fixture(params=[KernelSet.AMX, KernelSet.AVX512_BF16])
def kernel_set(request: pytest.FixtureRequest) -> KernelSet:
    """Sets that multiply codes."""
    chosen: KernelSet = request.param
    skip_unless_supported(chosen)
    return chosen


def assert_agree(found: list[Any], expected: list[Any], kernel_set: KernelSet) -> None:
    """Tiles make the bits of plain numbers. In pairs no weight is rounded, which shows in the last
    bits of bfloat16: those of what is likely after a prompt are compared."""
    if kernel_set is KernelSet.AMX:
        assert found == expected
        return
    for one, other in zip(found, expected, strict=True):
        tops = [
            {each.token_id: each.logprob for each in row[0].logprobs[0].top} for row in (one, other)
        ]
        for token in tops[0].keys() & tops[1].keys():
            assert abs(tops[0][token] - tops[1][token]) < CLOSE
        assert max(tops[0], key=tops[0].__getitem__) in tops[1]


def answers(model: Path, kernel_set: KernelSet, **options: Any) -> tuple[list[Any], int]:
    """Return what a model answers, and the bytes of its weights."""
    options |= {"device": "cpu", "kernel_set": kernel_set.value, "activations": "exact"}
    llm = LLM(model, dtype="bfloat16", **options)
    outputs = [done.outputs for done in llm.generate(PROMPTS, PARAMS)]
    return outputs, llm.report["memory"]["weights"]


def planned(model: Path, kernel_set: KernelSet) -> int:
    """Return the bytes that a plan says of the weights."""
    config, header = ModelConfig.from_folder(model), CheckpointHeader.read(model)
    facts = DeviceFacts(NEVER, code_kernels=kernel_set.code_kernels)
    return PlannedWeights(config, header, "bfloat16", facts).held_bytes


@pytest.mark.parametrize("form", HELD)
def test_of_a_folder(
    kernel_set: KernelSet, form: str, make_model: MakeModel, tmp_path: Path
) -> None:
    """One projection is stored in plain numbers, beside others that are not."""
    quantization, writer, share = HELD[form]
    dense = make_model("qwen2", "quantized", tie_word_embeddings=False)
    meant = write(dense, tmp_path / "codes", quantization, writer, keeps="v_proj")
    write_plain(dense, tmp_path / "plain", meant)
    (found, held), (expected, plain) = (
        answers(tmp_path / each, kernel_set) for each in ("codes", "plain")
    )
    assert_agree(found, expected, kernel_set)
    assert planned(tmp_path / "codes", kernel_set) == held
    packed = sum(weight.numel() for name, weight in meant.items() if "v_proj" not in name)
    assert plain - held >= (1 - share) * 2 * packed


@pytest.mark.parametrize("tied", [True, False])
def test_of_a_gguf_file(
    kernel_set: KernelSet, tied: bool, make_model: MakeModel, tmp_path: Path
) -> None:
    """A mix of types: query, key and value of unlike ones, the embedding in blocks."""
    folder = wide(make_model, "llama", tie_word_embeddings=tied)
    path = tmp_path / "model.gguf"
    meant = write_gguf(folder, path, mixed)
    plain = shutil.copytree(folder, tmp_path / "plain")
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    found, held = answers(path, kernel_set, tokenizer=folder)
    expected, in_plain = answers(plain, kernel_set)
    assert_agree(found, expected, kernel_set)
    assert planned(path, kernel_set) == held
    assert held < 0.45 * in_plain
