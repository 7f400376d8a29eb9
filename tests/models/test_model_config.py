"""ModelConfig must read config.json as transformers does, and refuse what it cannot run."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.values.errors import ModelError

SHAPE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write(folder: Path, *, generation: Any = None, **fields: Any) -> Path:
    config = {"model_type": "llama", **SHAPE, **fields}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def rope_of(config: ModelConfig) -> RopeConfig:
    """Return what turns the heads of every layer."""
    [rope] = {each.rope for each in config.network.attentions.values()}
    assert rope is not None
    return rope


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_folder(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


AS_TRANSFORMERS: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    {"model_type": "llama", "num_key_value_heads": None, "rope_theta": 500000.0},
    {"model_type": "llama", "eos_token_id": [5, 6], "bos_token_id": None},
    {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3},
    {"model_type": "llama", "rope_parameters": {"rope_theta": 7.5e5, **LLAMA3}},
    {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2}},
    {"model_type": "llama", "rope_scaling": {"rope_theta": 77.0, "rope_type": "default"}},
    {"model_type": "llama", "torch_dtype": "float16", "tie_word_embeddings": True},
    {"model_type": "llama", "torch_dtype": "float16", "dtype": "bfloat16"},
    {"model_type": "mistral"},
    {"model_type": "mistral", "sliding_window": 7},
    {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5},
    {"model_type": "qwen2", "max_window_layers": 2},
    {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2},
    {"model_type": "qwen2", "use_sliding_window": True},
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": None},
    {"model_type": "qwen2", "rope_theta": 1e6, "rope_scaling": YARN},
    {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 2.0}},
    {"model_type": "qwen3"},
    {"model_type": "qwen3", "attention_bias": True, "head_dim": 16},
    {
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
]


@pytest.mark.parametrize("fields", AS_TRANSFORMERS, ids=lambda fields: json.dumps(fields)[:60])
def test_reads_what_transformers_reads(tmp_path: Path, fields: dict[str, Any]) -> None:
    import transformers

    ours = ModelConfig.from_folder(write(tmp_path, **fields))
    hf_class = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }[fields["model_type"]]
    theirs = hf_class.from_pretrained(tmp_path)

    for name, hf_name in {
        "vocab_size": "vocab_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "max_position_embeddings": "max_position_embeddings",
        "bos_token_id": "bos_token_id",
    }.items():
        assert getattr(ours, name) == getattr(theirs, hf_name), name
    assert ours.network.norm.eps == theirs.rms_norm_eps
    assert (ours.network.head is None) == theirs.tie_word_embeddings
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64 // 8)
    assert ours.dtype == (str(theirs.dtype).removeprefix("torch.") if theirs.dtype else "float32")
    eos = theirs.eos_token_id
    assert list(ours.eos_token_ids) == (eos if isinstance(eos, list) else [eos] if eos else [])
    if fields["model_type"] in ("llama", "mistral"):
        assert ours.windows == (getattr(theirs, "sliding_window", None),) * 4
    else:
        assert ours.windows == tuple(
            theirs.sliding_window if kind == "sliding_attention" else None
            for kind in theirs.layer_types
        )
    rope = theirs.rope_parameters
    turned = rope_of(ours)
    assert turned.theta == rope["rope_theta"]
    assert turned.kind == rope["rope_type"]
    assert turned.factor == rope.get("factor", 1.0)
    assert turned.low_freq_factor == rope.get("low_freq_factor")
    if turned.kind in ("llama3", "yarn"):
        original = turned.original_max_positions or ours.max_position_embeddings
        assert original == rope["original_max_position_embeddings"]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_silence_means_what_transformers_assumes(tmp_path: Path, family: str) -> None:
    import transformers

    # 64 query heads: neither of the families' own defaults for key heads.
    write(tmp_path, model_type=family, hidden_size=640, num_attention_heads=64)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["num_key_value_heads"]
    path.write_text(json.dumps(config))
    ours = ModelConfig.from_folder(tmp_path)
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
    ours = ModelConfig.from_folder(write(tmp_path, model_type=family, **flags))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if is_tied:
        del shapes["lm_head.weight"]
    assert {each.name: each.shape for each in ours.network.parameters()} == shapes


def test_both_styles_of_config_are_the_same_model(tmp_path: Path) -> None:
    old = write(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3, torch_dtype="bfloat16")
    first = ModelConfig.from_folder(old)
    new = write(tmp_path, rope_parameters={"rope_theta": 5e5, **LLAMA3}, dtype="bfloat16")
    assert ModelConfig.from_folder(new) == first
    assert rope_of(first) == RopeConfig(
        theta=5e5,
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=8192,
    )


def test_yarn_fields_are_read(tmp_path: Path) -> None:
    extras = {"beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.5}
    scaling = {**YARN, **extras, "attention_factor": 1.5, "truncate": False}
    rope = rope_of(ModelConfig.from_folder(write(tmp_path, rope_scaling=scaling)))
    assert (rope.beta_fast, rope.beta_slow, rope.mscale, rope.mscale_all_dim) == (16, 2, 0.7, 0.5)
    assert rope.attention_factor == 1.5
    assert rope.truncate is False


def test_yarn_factor_null_reaches_to_the_models_length(tmp_path: Path) -> None:
    scaling = {**YARN, "factor": None}
    folder = write(tmp_path, rope_scaling=scaling, max_position_embeddings=65536)
    assert rope_of(ModelConfig.from_folder(folder)).factor == 2.0


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": 9}, {"eos_token_id": 7}, (9, 7)),
        ({"eos_token_id": [9, 7, 8]}, {"eos_token_id": [7, 3]}, (9, 7, 8, 3)),
        ({"eos_token_id": [9, 8]}, {}, (9, 8)),
        ({}, {"eos_token_id": None}, ()),
        ({}, {}, (2,)),  # what transformers assumes of a llama
    ],
)
def test_eos_ids_unite_with_generation_config_first(
    tmp_path: Path, generation: Any, config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    folder = write(tmp_path, generation=generation, **config)
    assert ModelConfig.from_folder(folder).eos_token_ids == expected


def test_what_could_name_code_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('the model folder ran code')")
    folder = write(
        tmp_path,
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        _attn_implementation_internal="evil/kernel",
        trust_remote_code=True,
        architectures=["Evil"],
        tokenizer_class=["nonsense"],
    )
    plain = tmp_path / "plain"
    plain.mkdir()
    assert ModelConfig.from_folder(folder) == ModelConfig.from_folder(write(plain))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "gpt2"}, "model_type"),
    ({"compression_config": {"quant_method": "sparse"}}, "compression_config"),
    ({"quantization_config": "int8"}, "quantization_config"),
    ({"model_type": None}, "model_type"),
    ({"model_type": ["llama"]}, "model_type"),
    ({"quantization_config": {"quant_method": "quip"}}, "quantization_config"),
    ({"per_layer_config": {"0": {}}}, "per_layer_config"),
    ({"is_causal": False}, "is_causal"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"vocab_size": None}, "vocab_size"),
    ({"vocab_size": 0}, "vocab_size"),
    ({"vocab_size": True}, "vocab_size"),
    ({"vocab_size": "1000"}, "vocab_size"),
    ({"vocab_size": 1000.0}, "vocab_size"),
    ({"vocab_size": 10**30}, "vocab_size"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"hidden_size": -64}, "hidden_size"),
    ({"hidden_size": 2**40}, "hidden_size"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_key_value_heads": 16}, "num_key_value_heads"),
    ({"hidden_size": 68}, "num_attention_heads"),
    ({"head_dim": 7}, "head_dim"),
    ({"head_dim": 10**9}, "head_dim"),
    ({"max_position_embeddings": 2**62}, "max_position_embeddings"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ({"torch_dtype": "float64"}, "torch_dtype"),
    ({"dtype": "int8"}, "dtype"),
    ({"eos_token_id": -1}, "eos_token_id"),
    ({"eos_token_id": [1, 1000]}, "eos_token_id"),
    ({"eos_token_id": "2"}, "eos_token_id"),
    ({"bos_token_id": 1000}, "bos_token_id"),
    ({"rope_theta": 0}, "rope_theta"),
    ({"rope_theta": float("inf")}, "rope_theta"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rope_scaling": "yarn"}, "rope_scaling"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_type"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "type"),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor"),
    ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_scaling": {**YARN, "beta_slow": 64}}, "beta_slow"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "factor"),
    ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    ({"model_type": "mistral", "layer_types": ["full_attention"] * 4}, "layer_types"),
    ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ({"model_type": "qwen3", "layer_types": ["full_attention"] * 3}, "layer_types"),
    ({"model_type": "qwen3", "layer_types": ["linear_attention"] * 4}, "layer_types"),
    ({"model_type": "qwen3", "layer_types": [["full_attention"]] * 4}, "layer_types"),
]


@pytest.mark.parametrize(("fields", "name"), REFUSED, ids=lambda item: json.dumps(item)[:60])
def test_refusals_name_the_file_and_the_field(
    tmp_path: Path, fields: dict[str, Any], name: str
) -> None:
    message = refusal(write(tmp_path, **fields))
    assert str(tmp_path / "config.json") in message
    assert f" {name} " in message


def test_a_hostile_value_is_shown_short_and_printable(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, model_type="\x1b[2J\u202e" + "x" * 10_000))
    assert message.isprintable()
    # As long as for any other name: the message lists what runs.
    assert len(message) < len(refusal(write(tmp_path, model_type="other"))) + 100


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
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    assert "generation_config.json" in refusal(tmp_path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "absent")
    assert refusal(tmp_path / "\x1b[2J\u202e").isprintable()
    assert "config.json is missing" in refusal(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    assert "is a file" in refusal(file)
