"""ModelConfig must read config.json as transformers does, and refuse what it cannot run."""

from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.attention import Heads
from pagedrun.paged.models.modules.rotary import RopeConfig
from tests.models.configs import read, refusal, write

LLAMA: dict[str, Any] = {"model_type": "llama"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rope_of(config: ModelConfig) -> RopeConfig:
    """Return what turns the heads of every layer."""
    [rope] = {each.rope for each in config.network.attentions.values()}
    assert rope is not None
    return rope


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_silence_means_what_transformers_assumes(tmp_path: Path, family: str) -> None:
    import transformers

    # 64 query heads: neither of the families' own defaults for key heads.
    heads = {"num_attention_heads": 64, "num_key_value_heads": "absent"}
    ours = read(tmp_path, model_type=family, hidden_size=640, **heads)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 10)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_tied", [False, True])
def test_parameters_are_those_of_the_model_class(
    tmp_path: Path, family: str, bias: bool, is_tied: bool
) -> None:
    import torch
    import transformers

    flags = {"attention_bias": bias, "mlp_bias": bias, "tie_word_embeddings": is_tied}
    ours = read(tmp_path, model_type=family, **flags)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if is_tied:
        del shapes["lm_head.weight"]
    assert {each.name: each.shape for each in ours.network.parameters()} == shapes


def test_both_styles_of_config_are_the_same_model(tmp_path: Path) -> None:
    old: dict[str, Any] = {"rope_theta": 5e5, "rope_scaling": LLAMA3, "torch_dtype": "bfloat16"}
    new: dict[str, Any] = {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}, "dtype": "bfloat16"}
    first = read(tmp_path, **LLAMA, **old)
    assert read(tmp_path, **LLAMA, **new) == first
    assert rope_of(first) == RopeConfig(
        theta=5e5,
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=8192,
    )


def test_rope_scaling_comes_before_rope_parameters() -> None:
    from transformers import LlamaConfig

    old, new = ({"rope_type": "linear", "rope_theta": 1e4, "factor": each} for each in (2.0, 4.0))
    given: dict[str, Any] = {"rope_scaling": old, "rope_parameters": new}
    theirs = LlamaConfig(**given).rope_parameters
    assert theirs["factor"] == 2.0
    assert RopeConfig.from_json(JsonObject("config.json", given), 4096).factor == 2.0


def test_key_heads_of_null_are_those_of_queries_and_missing_ones_those_of_the_family() -> None:
    from transformers import SmolLM3Config

    given = {"hidden_size": 64, "num_attention_heads": 8}
    assert SmolLM3Config(**given, num_key_value_heads=None).num_key_value_heads == 8
    null = JsonObject("config.json", {**given, "num_key_value_heads": None})
    assert Heads.from_json(null, num_kv_heads=4).num_kv_heads == 8
    assert SmolLM3Config(**given).num_key_value_heads == 4
    assert Heads.from_json(JsonObject("c", {**given}), num_kv_heads=4).num_kv_heads == 4


def test_yarn_fields_are_read(tmp_path: Path) -> None:
    extras = {"beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.5}
    scaling = {**YARN, **extras, "attention_factor": 1.5, "truncate": False}
    rope = rope_of(read(tmp_path, **LLAMA, rope_scaling=scaling))
    assert (rope.beta_fast, rope.beta_slow, rope.mscale, rope.mscale_all_dim) == (16, 2, 0.7, 0.5)
    assert rope.attention_factor == 1.5
    assert rope.truncate is False


def test_yarn_factor_null_reaches_to_the_models_length(tmp_path: Path) -> None:
    scaling = {**YARN, "factor": None}
    config = read(tmp_path, **LLAMA, rope_scaling=scaling, max_position_embeddings=65536)
    assert rope_of(config).factor == 2.0


def test_what_could_name_code_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('the model folder ran code')")
    config = read(
        tmp_path,
        **LLAMA,
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        _attn_implementation_internal="evil/kernel",
        trust_remote_code=True,
        architectures=["Evil"],
        tokenizer_class=["nonsense"],
    )
    plain = tmp_path / "plain"
    plain.mkdir()
    assert config == read(plain, **LLAMA)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "nested"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[1, 2]", "does not contain a JSON object"),
        (b"", "not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    message = refusal(tmp_path)
    assert "config.json" in message
    assert words in message


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    write(tmp_path, **LLAMA)
    (tmp_path / "generation_config.json").write_text("{")
    assert "generation_config.json" in refusal(tmp_path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "absent")
    assert refusal(tmp_path / "\x1b[2J\u202e").isprintable()
    assert "is empty" in refusal(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    assert "is a file" in refusal(file)
