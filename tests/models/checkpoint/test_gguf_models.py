"""A GGUF file must mean what the folder meant that it was made of."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from pagedrun import LLM, SamplingParams
from pagedrun.paged.models.model_config import ModelConfig
from tests.conftest import MakeModel
from tests.support.every_pair import every_pair
from tests.support.gguf_writer import KindOf, mixed, wide, write_gguf
from tests.support.quantized_checkpoints import read

PROMPTS = ["The first", "a", "Where does the water of the long river go?"]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_every_projection_has_the_weights_that_were_written(
    family: str, kind: str, make_model: MakeModel, tmp_path: Path
) -> None:
    folder = make_model(family, "gguf-source")
    meant = write_gguf(folder, tmp_path / "model.gguf", lambda name: kind)
    found = read(tmp_path / "model.gguf")
    assert len(found) == 7 * ModelConfig.from_folder(folder).num_layers
    assert all(torch.equal(weight, meant[f"{name}.weight"]) for name, weight in found.items())


@every_pair(
    in_turn="family",
    family=["llama", "qwen2", "qwen3"],
    kind_of=[mixed, lambda name: "Q8_0"],
)
def test_answers_are_those_of_transformers_with_the_weights_in_plain_numbers(
    family: str, kind_of: KindOf, make_model: MakeModel, tmp_path: Path
) -> None:
    folder, path = wide(make_model, family), tmp_path / "model.gguf"
    meant = write_gguf(folder, path, kind_of)
    plain = shutil.copytree(folder, tmp_path / "plain")
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    oracle = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    llm = LLM(path, tokenizer=folder, dtype="float32", activations="exact")
    ids = llm.tokenizer.encode_batch(PROMPTS, add_special_tokens=True)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for prompt, answer in zip(ids, llm.generate(PROMPTS, params, raw=True), strict=True):
        expected = oracle.generate(
            torch.tensor([prompt]),
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
        )
        assert list(answer.outputs[0].token_ids) == expected[0, len(prompt) :].tolist()


def test_the_config_says_what_the_folders_says(make_model: MakeModel, tmp_path: Path) -> None:
    folder = make_model("qwen3", "gguf-source")
    write_gguf(folder, tmp_path / "model.gguf", lambda name: "Q8_0")
    found, expected = (
        ModelConfig.from_folder(tmp_path / "model.gguf"),
        ModelConfig.from_folder(folder),
    )
    for name in ("model_type", "vocab_size", "hidden_size", "num_layers", "num_heads", "head_dim"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.max_position_embeddings == expected.max_position_embeddings
    assert found.network.ties_head is expected.network.ties_head is False
    first, other = found.network.attentions[0], expected.network.attentions[0]
    assert (first.rope, first.scale, first.window) == (other.rope, other.scale, other.window)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_frequencies_of_llama_3_are_recognised(
    factor: float, make_model: MakeModel, tmp_path: Path
) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    folder = make_model("llama", "gguf-llama3", rope_theta=500_000.0, max_position_embeddings=4096)
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    head_dim = ModelConfig.from_folder(folder).head_dim
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        rope_parameters={**scaling, "rope_theta": 500_000.0},
    )
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500_000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    path = tmp_path / "model.gguf"
    write_gguf(
        folder,
        path,
        lambda name: "F16",
        change=lambda writer: writer.add_tensor("rope_freqs.weight", (plain / stretched).numpy()),
    )
    rope = ModelConfig.from_folder(path).network.attentions[0].rope
    assert rope is not None
    assert (rope.kind, rope.factor, rope.original_max_positions) == ("llama3", factor, 8192)


def test_a_model_in_several_parts(make_model: MakeModel, tmp_path: Path) -> None:
    folder = make_model("llama", "gguf-source")
    meant = write_gguf(folder, tmp_path / "model.gguf", lambda name: "Q8_0", split_max_tensors=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 1
    found = read(parts[0])
    assert all(torch.equal(weight, meant[f"{name}.weight"]) for name, weight in found.items())


def test_the_chat_template_and_the_end_of_a_turn(tmp_path: Path) -> None:
    from pagedrun.recipes import demo

    folder = Path(demo.__file__).parent
    write_gguf(folder, tmp_path / "model.gguf", lambda name: "Q8_0")
    llm, plain = LLM(tmp_path / "model.gguf"), LLM(folder)
    chat = [{"role": "user", "content": "Who works in room 12?"}]
    assert llm.tokenizer.render_chat(chat) == plain.tokenizer.render_chat(chat)
    ids = llm.tokenizer.encode_batch([llm.tokenizer.render_chat(chat)], False)
    assert ids[0][0] == plain.tokenizer.encode_batch(["<|im_start|>"], False)[0][0]
    config = json.loads((folder / "config.json").read_text())
    assert config["eos_token_id"] in ModelConfig.from_folder(tmp_path / "model.gguf").eos_token_ids
