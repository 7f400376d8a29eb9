"""The families' config.json files, in the styles of the hub, must mean what transformers takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.models.families.registry import FAMILIES, NESTED, UNSUPPORTED
from pagedrun.paged.models.model_config import ModelConfig
from tests.models.configs import FULL, SLIDING, read, refusal, write
from tests.models.stored_shapes import StoredShapes

LONGROPE = {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
HUB: list[dict[str, Any]] = [
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
        "layer_types": [SLIDING, FULL] * 3,
    },
    {"model_type": "granite", "rope_theta": 1e7, "num_key_value_heads": None},
    {"model_type": "olmo2", "rope_theta": 5e5, "eos_token_id": 257},
    {"model_type": "olmo3"},
    {"model_type": "olmo3", "rope_theta": 1e5, "rope_scaling": YARN, "sliding_window": 9},
    {"model_type": "smollm3", "rope_theta": 5e6},
    {"model_type": "smollm3"},
    {"model_type": "glm4", "partial_rotary_factor": 0.25, "head_dim": 16, "rope_theta": 5e4},
    {"model_type": "glm4", "rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}},
    {"model_type": "phi3", "rope_theta": 25e4, "sliding_window": 7, "rope_scaling": None},
    {
        "model_type": "phi3",
        "rope_scaling": LONGROPE,
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 16_384,
        "original_max_position_embeddings": 512,
    },
    {"model_type": "seed_oss", "rope_theta": 1e7},
    {"model_type": "hunyuan_v1_dense", "head_dim": 16},
    {"model_type": "ernie4_5"},
    {"model_type": "ministral", "layer_types": [SLIDING, FULL] * 3},
    {"model_type": "ministral", "sliding_window": None},
    {"model_type": "ministral3"},
    {"model_type": "gemma2", "head_dim": 16},
    {"model_type": "gemma2", "rope_theta": 5e4, "sliding_window": 11},
    {
        "model_type": "gemma3_text",
        "rope_theta": 1e5,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    },
    {"model_type": "gemma3_text", "sliding_window": 21},
    {"model_type": "gpt_oss", "eos_token_id": 9},
    {
        "model_type": "gpt_oss",
        "head_dim": 16,
        "rope_theta": 150_000,
        "rope_scaling": {**YARN, "truncate": False},
        "layer_types": [SLIDING, FULL] * 3,
        "quantization_config": {"quant_method": "mxfp4"},
        "eos_token_id": 999,
    },
    {
        "model_type": "gpt_oss",
        "rope_parameters": {"rope_type": "default", "rope_theta": 7e4},
        "eos_token_id": [9, 7],
    },
]


@pytest.mark.parametrize("fields", HUB, ids=lambda fields: json.dumps(fields)[15:70])
def test_reads_what_transformers_reads(tmp_path: Path, fields: dict[str, Any]) -> None:
    import transformers

    ours = read(tmp_path, **fields)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (ours.vocab_size, ours.num_layers) == (theirs.vocab_size, theirs.num_hidden_layers)
    assert (ours.num_heads, ours.num_kv_heads) == (
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
    )
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64 // 8)
    if fields.get("rope_scaling") is not LONGROPE:
        assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.dtype == (str(theirs.dtype).removeprefix("torch.") if theirs.dtype else "float32")
    assert ours.network.norm is not None
    assert ours.network.norm.eps == theirs.rms_norm_eps
    assert (ours.network.head is None) == theirs.tie_word_embeddings
    assert ours.bos_token_id == theirs.bos_token_id
    eos = theirs.eos_token_id
    assert list(ours.eos_token_ids) == [
        each for each in (eos if isinstance(eos, list) else [eos]) if each and each < 1000
    ]
    kinds = getattr(theirs, "layer_types", None)
    window = getattr(theirs, "sliding_window", None)
    for index, attention in ours.network.attentions.items():
        kind = FULL if kinds is None else kinds[index]
        slides = kind == SLIDING or fields["model_type"] in ("mistral", "phi3", "ministral3")
        assert attention.window == (window if slides else None)
        rope = attention.rope
        if rope is None:
            assert not theirs.no_rope_layers[index]
            continue
        expected = theirs.rope_parameters
        expected = expected.get(kind, expected)
        assert (rope.kind, rope.theta) == (expected["rope_type"], expected["rope_theta"])
        assert rope.partial_rotary_factor == expected.get("partial_rotary_factor", 1.0)
        assert rope.low_freq_factor == expected.get("low_freq_factor")
        if rope.kind in ("linear", "llama3", "yarn"):
            assert rope.factor == expected["factor"]
        if rope.kind in ("llama3", "yarn"):
            original = rope.original_max_positions or ours.max_position_embeddings
            assert original == expected["original_max_position_embeddings"]


def test_gemma_3_of_the_hub_says_little(tmp_path: Path) -> None:
    """The published 4B names neither its heads nor its vocabulary."""
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    config = {"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = ModelConfig.from_folder(tmp_path)
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim) == (8, 4, 256)
    assert (ours.vocab_size, ours.model_type) == (262_208, "gemma3_text")
    assert [window for window in ours.windows if window is None] == [None] * 5


GEMMA4: dict[str, Any] = {"model_type": "gemma4_text", "head_dim": 16, "vocab_size": 1000}
GEMMA4_HUB: list[dict[str, Any]] = [
    {"hidden_size_per_layer_input": 0},
    {"num_kv_shared_layers": 0, "layer_types": [SLIDING] * 6, "global_head_dim": 32},
    {"num_global_key_value_heads": 1},  # keys are not values: it means nothing
    {"num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 7},
    {
        "layer_types": [SLIDING, FULL] * 3,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "use_bidirectional_attention": "vision",
        "hidden_size_per_layer_input": 8,
    },
    {
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 3,
        "moe_intermediate_size": 32,
        "final_logit_softcapping": 30.0,
    },
    {"model_type": "gemma4_unified_text", "attention_bias": True},
]


@pytest.mark.parametrize("saved", [False, True], ids=["hub", "saved"])
@pytest.mark.parametrize("fields", GEMMA4_HUB, ids=lambda fields: json.dumps(fields)[1:50])
def test_gemma_4_is_what_transformers_makes_of_both_dialects(
    tmp_path: Path, fields: dict[str, Any], saved: bool
) -> None:
    """`saved`: as transformers 5 writes the same config, heads layer by layer."""
    import torch
    import transformers

    folder = write(tmp_path, **{**GEMMA4, **fields})
    theirs = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(theirs).state_dict()
    if saved:
        theirs.save_pretrained(folder)
        assert "per_layer_config" in json.loads((folder / "config.json").read_text())
    ours = ModelConfig.from_folder(folder)
    expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
    stored = ours.network.stored_as(StoredShapes(expected))
    shapes = {each.name: each.shape for each in stored.parameters()}
    assert expected.pop("lm_head.weight") == (1000, 64)  # tied
    assert shapes == expected
    kinds, thetas = theirs.layer_types, theirs.rope_parameters
    modes = theirs.kv_sharing_modes
    for index, attention in ours.network.attentions.items():
        kind = kinds[index]
        slides = kind == SLIDING
        assert attention.window == (theirs.sliding_window if slides else None)
        assert attention.rope is not None
        assert attention.rope.theta == thetas[kind]["rope_theta"]
        assert attention.rope.kind == thetas[kind]["rope_type"]
        assert (attention.source is not None) == (modes[index] == "reuse")
        if attention.source is not None:
            assert (modes[attention.source], kinds[attention.source]) == ("store", kind)
    assert ours.network.logits_cap == theirs.final_logit_softcapping
    assert ours.max_position_embeddings == theirs.max_position_embeddings


def test_experts_of_gemma_4_may_have_a_tensor_each(tmp_path: Path) -> None:
    config = read(tmp_path, **{**GEMMA4, **GEMMA4_HUB[5]})
    name = "model.layers.5.experts.7.down_proj.weight"
    separate = config.network.stored_as(StoredShapes({name: ()})).layers[5].parts
    names = [each.name for part in separate for each in part.parameters()]
    assert name in names
    assert "model.layers.5.experts.down_proj" not in names


def test_longrope_runs_up_to_the_context_before_stretching(tmp_path: Path) -> None:
    fields = {"max_position_embeddings": 16_384, "original_max_position_embeddings": 512}
    short = {**LONGROPE, "short_factor": [1.0] * 4}
    config = read(tmp_path, model_type="phi3", rope_scaling=short, **fields)
    assert config.max_position_embeddings == 512


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_other_types_are_refused_with_what_is_missing_and_the_nearest(
    tmp_path: Path, model_type: str
) -> None:
    missing, nearest = UNSUPPORTED[model_type]
    message = refusal(write(tmp_path, model_type=model_type))
    assert f"{model_type!r}" in message
    assert f"for lack of {missing}; the most similar supported type is {nearest} " in message
    assert nearest in {**FAMILIES, **NESTED}
    assert model_type not in {**FAMILIES, **NESTED}


# Of models that are asked for, those that need what no family here has.
BEYOND = """
cohere2 deepseek_v3 deepseek_v32 deepseek_v4 exaone4 gemma3n glm4_moe_lite glm5_next glm_moe_dsa
granitemoehybrid hy_v4 inkling_mm_model inkling_text kimi_k25 kimi_linear lfm2_moe lfm3 llama4
llama4_text minimax_m2 mistral4 mistral_large4 muse_spark nemotron_h olmoe qwen3_vl qwen4_exp
"""


def test_no_model_that_is_asked_for_is_unheard_of() -> None:
    assert set(BEYOND.split()) <= {*FAMILIES, *NESTED, *UNSUPPORTED}


def test_types_that_do_not_run_are_types_of_transformers() -> None:
    """A type with a slip of the pen would never be found in a config.json."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert UNSUPPORTED.keys() <= CONFIG_MAPPING_NAMES.keys()
