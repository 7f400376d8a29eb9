"""Every format: what the program computes in float32 with a quantised model is what Transformers
computes with the weights that its tensors mean, within 1e-3."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from pagedrun import LLM, SamplingParams
from pagedrun.paged.values.logprobs import TokenLogprob, TopLogprob
from tests.conftest import MakeModel
from tests.support.gguf_writer import write_gguf
from tests.support.quantized_checkpoints import write, write_plain
from tests.support.quantized_forms import FP8, PACKED

PROMPT = [7, 8, 9, 100, 3, 250, 31, 31, 64, 5]
NUM_TOP = 20

FORMS = {
    name: form
    for name, form in {**PACKED, **FP8}.items()
    if name
    in {
        *("awq", "gptq", "gptq, second version", "gptq, asymmetric", "gptq, scattered groups"),
        *("packed", "packed, asymmetric", "packed, eight bits", "int8, rows", "int8, groups"),
        *("float8, rows", "float8, blocks", "fp8, blocks", "fp8, rows", "fp8, whole"),
    }
}
KINDS = ("F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K")


def check_logits(model: Path, plain: Path) -> None:
    """Compare log-probabilities at every place of a prompt, of its tokens and of the likeliest."""
    oracle = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.no_grad():
        expected = oracle(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    llm = LLM(model, tokenizer=plain, dtype="float32", device="cpu", activations="exact")
    params = SamplingParams(max_tokens=0, prompt_logprobs=NUM_TOP)
    [answer] = llm.generate([PROMPT], params)
    assert answer.prompt_logprobs is not None
    for place, found in enumerate(answer.prompt_logprobs[1:]):
        assert found is not None
        assert len(found.top) == NUM_TOP
        every: list[TokenLogprob | TopLogprob] = [found, *found.top]
        for token in every:
            assert token.logprob == pytest.approx(float(expected[place, token.token_id]), abs=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_of_a_quantised_folder(form: str, make_model: MakeModel, tmp_path: Path) -> None:
    dense = make_model("qwen2", "quantized", tie_word_embeddings=False)
    weights = write(dense, tmp_path / "codes", *FORMS[form])
    write_plain(dense, tmp_path / "plain", weights)
    check_logits(tmp_path / "codes", tmp_path / "plain")


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_gguf_file(kind: str, make_model: MakeModel, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 16}
    folder = make_model("llama", "gguf-logits", **sizes, head_dim=16)
    meant = write_gguf(folder, tmp_path / "model.gguf", lambda name: kind)
    plain = shutil.copytree(folder, tmp_path / "plain")
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    check_logits(tmp_path / "model.gguf", plain)
