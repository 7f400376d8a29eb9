"""Values in config.json that no family runs: refused by the name of the file and of the field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.models.configs import FULL, LINEAR, SLIDING, refusal, write

LONGROPE = {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
NAN, INFINITY = float("nan"), float("inf")
Refused = tuple[dict[str, Any], str]


def bad(model_type: Any, field: str, *values: Any, named: str = "", **others: Any) -> list[Refused]:
    """Return configs, one for each value of a field, and the field that their refusals name."""
    return [
        ({"model_type": model_type, **others, field: value}, named or field) for value in values
    ]


def bad_scaling(named: str, *values: Any) -> list[Refused]:
    return bad("llama", "rope_scaling", *values, named=named)


GENERAL: list[Refused] = [
    *bad("gpt2", "head_dim", 8, named="model_type"),
    *bad(None, "head_dim", 8, named="model_type"),
    *bad(["llama"], "head_dim", 8, named="model_type"),
    *bad("llama", "compression_config", {"quant_method": "sparse"}),
    *bad("llama", "quantization_config", "int8", {"quant_method": "quip"}),
    *bad("llama", "per_layer_config", {"0": {}}),
    *bad("llama", "is_causal", False),
    *bad("llama", "hidden_act", "gelu"),
    *bad("llama", "vocab_size", None, 0, True, "1000", 1000.0, 10**30),
    *bad("llama", "num_hidden_layers", 0, 10**9),
    *bad("llama", "hidden_size", -64, 2**40),
    *bad("llama", "hidden_size", 68, named="num_attention_heads"),
    *bad("llama", "num_key_value_heads", 3, 16),
    *bad("llama", "head_dim", 7, 10**9),
    *bad("llama", "max_position_embeddings", 2**62),
    *bad("llama", "rms_norm_eps", "1e-6", NAN, INFINITY),
    *bad("llama", "tie_word_embeddings", 1),
    *bad("llama", "torch_dtype", "float64"),
    *bad("llama", "dtype", "int8"),
    *bad("llama", "eos_token_id", -1, [1, 1000], "2"),
    *bad("llama", "bos_token_id", 1000),
    *bad("llama", "rope_theta", 0, INFINITY),
    *bad("llama", "partial_rotary_factor", 0.5),
    *bad_scaling("rope_scaling", "yarn"),
    *bad_scaling("rope_type", {"rope_type": "longrope", "factor": 4.0}),
    *bad_scaling("type", {"type": "dynamic", "factor": 4.0}),
    *bad_scaling("factor", {"type": "linear"}, {"type": "linear", "factor": 0.5}),
    *bad_scaling("factor", {"rope_type": "yarn"}),
    *bad_scaling("high_freq_factor", {**LLAMA3, "high_freq_factor": 1.0}),
    *bad_scaling("beta_slow", {**YARN, "beta_slow": 64}),
    *bad("mistral", "sliding_window", 0),
    *bad("mistral", "layer_types", [FULL] * 6),
    *bad("qwen3", "layer_types", [SLIDING] * 6, [FULL] * 5, [LINEAR] * 6, [[FULL]] * 6),
]
GEMMA4: dict[str, Any] = {"head_dim": 16}
DENSE: list[Refused] = [
    *bad("gemma2", "sliding_window", 0),
    *bad("gemma2", "query_pre_attn_scalar", 0),
    *bad("gemma3_text", "sliding_window", None),
    *bad("gemma3_text", "hidden_activation", "gelu"),
    *bad("gemma3_text", "rope_parameters", {"rope_theta": 1e4}),
    *bad("gemma3_text", "rope_local_base_freq", -1.0),
    *bad("gemma3_text", "use_bidirectional_attention", True),
    *bad("granite", "logits_scaling", 0),
    *bad("smollm3", "no_rope_layers", [1, 0], ["no"] * 6),
    *bad("glm4", "partial_rotary_factor", 0.01),
    *bad("phi3", "rope_scaling", LONGROPE, named="short_factor"),
    *bad("phi3", "rope_scaling", {**LONGROPE, "short_factor": [0] * 4}, named="short_factor"),
    *bad("hunyuan_v1_dense", "rope_scaling", {"type": "dynamic", "factor": 2}, named="type"),
    *bad("olmo3", "layer_types", [FULL] * 5),
    *bad("gemma4_text", "num_kv_shared_layers", 6, 1, **GEMMA4),  # 1: nothing full comes before
    *bad("gemma4_text", "use_bidirectional_attention", "all", **GEMMA4),
    *bad("gemma4_text", "per_layer_config", {"5": {"head_dim": 15}}, named="head_dim", **GEMMA4),
    *bad("gemma4_text", "per_layer_config", {"4": {"head_dim": 32}}, **GEMMA4),
    *bad("gemma4_text", "per_layer_config", {"5": {"sliding_window": 3}}, **GEMMA4),
    *bad("gemma4_text", "global_head_dim", -2, **GEMMA4),
    *bad("gemma4_text", "vocab_size_per_layer_input", 999, **GEMMA4),
    *bad("gemma4_text", "sliding_window", 0, **GEMMA4),
    *bad("mistral3", "hidden_size", 64, named="text_config"),
    *bad("mistral3", "text_config", []),
]
RECURRENT: list[Refused] = [
    *bad("qwen3_5_text", "layer_types", [LINEAR] * 6, [FULL] * 5, ["conv", FULL] * 3, 3),
    *bad("qwen3_5_text", "full_attention_interval", 0),
    *bad("qwen3_5_text", "linear_num_key_heads", 3, named="linear_num_value_heads"),
    *bad("qwen3_5_text", "linear_key_head_dim", 0),
    *bad("qwen3_5_text", "linear_value_head_dim", 10**9),
    *bad("qwen3_5_text", "linear_conv_kernel_dim", 1),
    *bad("qwen3_5_text", "attn_output_gate", False),
    *bad("qwen3_5_text", "output_gate_type", "sigmoid"),
    *bad("qwen3_5_text", "hidden_act", "gelu"),
    *bad("qwen3_5_text", "rope_theta", -1.0),
    *bad("qwen3_next", "num_experts", 2, named="num_experts_per_tok", num_experts_per_tok=3),
    *bad("qwen3_5_moe", "hidden_size", 64, named="text_config"),
    *bad("lfm2", "full_attn_idxs", [], named="layer_types"),
    *bad("lfm2", "full_attn_idxs", 3),
    *bad("lfm2", "layer_types", [LINEAR, FULL] * 3),
    *bad("lfm2", "conv_L_cache", 0, full_attn_idxs=[1]),
    *bad("lfm2", "block_multiple_of", 0),
    *bad("lfm2", "block_ffn_dim_multiplier", -1),
]
DOTS: dict[str, Any] = {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3}
CONV: dict[str, Any] = {"layer_types": ["conv", FULL] * 3}
HYBRID: dict[str, Any] = {"layer_types": ["attention"] * 6}
HUNYUAN: dict[str, Any] = {"num_experts": 4}
SMALL_HEADS: dict[str, Any] = {"head_dim": 8}
MOE: list[Refused] = [
    *(
        case
        for family in ("mixtral", "qwen2_moe", "qwen3_moe")
        for case in (
            *bad(family, "num_local_experts", 0, 10**9),
            *bad(family, "num_experts_per_tok", 0),
            *bad(family, "num_experts_per_tok", 5, num_local_experts=4),
            *bad(family, "quantization_config", {"quant_method": "mxfp4"}),
        )
    ),
    *bad("qwen3_moe", "decoder_sparse_step", 0),
    *bad("qwen3_moe", "mlp_only_layers", 3, ["0"], [True]),
    *bad("qwen3_moe", "norm_topk_prob", 1),
    *bad("qwen3_moe", "moe_intermediate_size", -1),
    *bad("gpt_oss", "sliding_window", None, 0),
    *bad("gpt_oss", "layer_types", ["chunked_attention"] * 6),
    *bad("gpt_oss", "rope_theta", -1.0),
    *bad("gpt_oss", "hidden_act", "gelu"),
    *bad("gpt_oss", "swiglu_limit", 0),
    *bad("gpt_oss", "swiglu_alpha", -1.0),
    *bad("gpt_oss", "num_local_experts", 0),
    *bad("gpt_oss", "num_experts_per_tok", 5, num_local_experts=4),
    *bad("gpt_oss", "quantization_config", {"quant_method": "awq"}),
    *bad("gemma4_text", "enable_moe_block", True, named="moe_intermediate_size", num_experts=4),
    *bad("glm4_moe", "n_routed_experts", 0, 10**9),
    *bad("glm4_moe", "num_experts_per_tok", 129),
    *bad("glm4_moe", "n_group", 7, 128, 10**12),  # 128: the best two of one
    *bad("glm4_moe", "topk_group", 5, n_group=4),
    *bad("glm4_moe", "n_group", 64, named="num_experts_per_tok", topk_group=2),  # 8 of 4
    *bad("glm4_moe", "routed_scaling_factor", -1.0, 0),
    *bad("glm4_moe", "scoring_func", "softmax"),
    *bad("glm4_moe", "topk_method", "greedy"),
    *bad("glm4_moe", "n_shared_experts", -1),
    *bad("glm4_moe", "first_k_dense_replace", -1),
    *bad("glm4_moe", "moe_intermediate_size", 0),
    *bad("glm4_moe", "num_nextn_predict_layers", 10**9),
    *bad("glm4_moe", "partial_rotary_factor", -0.5, **SMALL_HEADS),
    *bad("glm4_moe", "rope_theta", -1e4),
    *bad("glm4_moe", "hidden_act", "gelu"),
    *bad("glm4_moe", "quantization_config", {"quant_method": "mxfp4"}),
    *bad("dots1", "n_routed_experts", "absent"),
    *bad("dots1", "sliding_window", 0, **DOTS),
    *bad("dots1", "layer_types", [SLIDING] * 9, **DOTS),
    *bad("ernie4_5_moe", "moe_num_experts", 0),
    *bad("ernie4_5_moe", "moe_k", 65),
    *bad("ernie4_5_moe", "moe_layer_interval", 0),
    *bad("ernie4_5_moe", "moe_norm_min", 1.0),
    *bad("ernie4_5_moe", "use_bias", True),
    *bad("olmoe", "clip_qkv", 8.0),
    *bad("olmoe", "num_experts_per_tok", 65),
    *bad("minimax_m2", "rotary_dim", 9, **SMALL_HEADS),
    *bad("minimax_m2", "scoring_func", "softmax"),
    *bad("minimax_m2", "num_local_experts", 0),
    *bad("lfm2_moe", "num_experts_per_tok", 33, **CONV),
    *bad("lfm2_moe", "layer_types", ["conv"] * 6),
    *bad("hunyuan_v1_moe", "moe_topk", [1, 2] * 3, [], 5, **HUNYUAN),
    *bad("hunyuan_v1_moe", "moe_intermediate_size", 7, **HUNYUAN),
    *bad("hunyuan_v1_moe", "num_shared_expert", [2] * 6, **HUNYUAN),
    *bad("granitemoe", "num_local_experts", 0),
    *bad("granitemoehybrid", "layer_types", ["mamba", "attention"] * 3, None),
    *bad("granitemoehybrid", "position_embedding_type", "alibi", **HYBRID),
    *bad("granitemoehybrid", "shared_intermediate_size", 0, **HYBRID),
]


@pytest.mark.parametrize(
    ("fields", "name"),
    [*GENERAL, *DENSE, *RECURRENT, *MOE],
    ids=lambda item: json.dumps(item)[:80],
)
def test_refusals_name_the_file_and_the_field(
    tmp_path: Path, fields: dict[str, Any], name: str
) -> None:
    message = refusal(write(tmp_path, **fields))
    assert str(tmp_path / "config.json") in message
    assert re.search(rf"\b{name}\b", message)
    # The message on an unknown type lists those that run.
    assert len(message) < 600 or name == "model_type"


def test_a_hostile_value_is_shown_short_and_printable(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, model_type="\x1b[2J\u202e" + "x" * 10_000))
    assert message.isprintable()
    assert len(message) < len(refusal(write(tmp_path, model_type="other"))) + 100
