"""Every architecture that is read from GGUF computes what transformers does with its weights."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from pagedrun import LLM, SamplingParams
from pagedrun.paged.models.checkpoint.gguf_architectures import ARCHITECTURES
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel
from tests.support.families import TINY, Tiny, save_tiny
from tests.support.gguf_writer import write_gguf

PROMPTS = [[7, 8, 9], list(range(20, 90)), [3]]
PLAIN = Tiny("Phi3Config", {"tie_word_embeddings": False}, without=("head_dim",))
# Fields without what the files do not say.
MODELS: dict[str, str | Tiny] = {
    "gemma2": Tiny("Gemma2Config", {**TINY["gemma2"].fields, "query_pre_attn_scalar": 16}),
    "gemma3": Tiny(
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 6,
            "query_pre_attn_scalar": 16,
            "sliding_window": 50,
            "rope_parameters": TINY["gemma3"].fields["rope_parameters"],
        },
    ),
    "granite": Tiny("GraniteConfig", {**TINY["granite"].fields, "mlp_bias": False}),
    "lfm2": "lfm2",
    "olmo2": "olmo2",
    "phi3": PLAIN,
    "smollm3": "smollm3",
}


def compare(folder: Path, path: Path, meant: dict[str, torch.Tensor]) -> None:
    """Compare answers, and how likely their tokens are, with those of the meant weights."""
    plain = shutil.copytree(folder, path.parent / "plain")
    save_file(
        {name: each.contiguous() for name, each in meant.items()},
        plain / "model.safetensors",
        metadata={"format": "pt"},
    )
    oracle = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    llm = LLM(path, tokenizer=folder, dtype="float32", device="cpu", activations="exact")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    for prompt, answer in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
        found = answer.outputs[0]
        whole = torch.tensor([[*prompt, *found.token_ids]])
        with torch.no_grad():
            logits = oracle(whole).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert list(found.token_ids) == logits.argmax(-1).tolist()
        assert found.logprobs is not None
        likely = torch.tensor([each.logprob for each in found.logprobs])
        torch.testing.assert_close(likely, logits.amax(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    save_tiny(MODELS[name], tmp_path / "folder")
    path = tmp_path / "model.gguf"
    compare(tmp_path / "folder", path, write_gguf(tmp_path / "folder", path, lambda name: "Q8_0"))


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_are_those_of_transformers(
    family: str, make_model: MakeModel, tmp_path: Path
) -> None:
    normalised = {"norm_topk_prob": True} if family == "qwen3_moe" else {}
    folder, path = make_model(family, "gguf", **normalised), tmp_path / "model.gguf"
    compare(folder, path, write_gguf(folder, path, lambda name: "Q4_1"))


def test_all_that_are_read_are_tried() -> None:
    elsewhere = {"llama", "qwen2", "qwen3", "qwen3moe"}
    assert set(ARCHITECTURES) == set(MODELS) | elsewhere


def test_factors_of_longrope_are_read(tmp_path: Path) -> None:
    save_tiny("phi4-mini", tmp_path / "folder")
    path, factors = tmp_path / "model.gguf", TINY["phi4-mini"].fields["rope_parameters"]

    def change(writer) -> None:  # type: ignore[no-untyped-def]
        writer.add_rope_dimension_count(12)
        writer.add_rope_scaling_orig_ctx_len(1024)
        for kind in ("short", "long"):
            numbers = torch.tensor(factors[f"{kind}_factor"]).numpy()
            writer.add_tensor(f"rope_factors_{kind}.weight", numbers)

    write_gguf(tmp_path / "folder", path, lambda name: "F16", change=change)
    ours, theirs = map(ModelConfig.from_folder, (path, tmp_path / "folder"))
    found, expected = (each.network.attentions[0].rope for each in (ours, theirs))
    assert found is not None
    assert expected is not None
    assert found.periods == pytest.approx(expected.periods, rel=1e-6)
    assert (found.kind, found.factor, found.original_max_positions) == (
        expected.kind,
        expected.factor,
        expected.original_max_positions,
    )
    assert found.partial_rotary_factor == expected.partial_rotary_factor
    assert ours.max_position_embeddings == theirs.max_position_embeddings


def test_olmo_3_is_not_read_as_olmo_2(tmp_path: Path) -> None:
    save_tiny("olmo2", tmp_path / "folder")
    path = tmp_path / "model.gguf"

    def change(writer) -> None:  # type: ignore[no-untyped-def]
        writer.add_sliding_window(4096)

    write_gguf(tmp_path / "folder", path, lambda name: "F16", change=change)
    with pytest.raises(ModelError, match="sliding_window is 4096"):
        ModelConfig.from_folder(path)


def test_experts_of_another_architecture_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    folder = make_model("qwen3", "gguf-source")
    write_gguf(folder, path, lambda name: "F16", change=lambda writer: writer.add_expert_count(4))
    with pytest.raises(ModelError, match="expert_count is 4"):
        ModelConfig.from_folder(path)


def test_word_pieces_without_special_tokens_are_refused(
    make_model: MakeModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    folder = make_model("qwen3", "gguf-source")
    write_gguf(folder, path, lambda name: "F16")
    kind = b"tokenizer.ggml.model" + (8).to_bytes(4, "little") + (4).to_bytes(8, "little")
    assert kind + b"gpt2" in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(kind + b"gpt2", kind + b"bert"))
    with pytest.raises(ModelError, match="which is no special token"):
        LLM(path)
