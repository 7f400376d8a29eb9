"""Configs that contradict themselves or ask for the absurd: input 33, requirement S13."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.registry import FAMILIES
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.modules.rotary_tables import rotary_table
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

SLIDING, FULL = "sliding_attention", "full_attention"
NUM_LAYERS = 4
SHAPE: dict[str, JSONValue] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
# What some families have no default for.
NEEDED: dict[str, dict[str, JSONValue]] = {
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["attention"] * NUM_LAYERS},
}
YARN: dict[str, JSONValue] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Fields that are read of any family, or of one.
FIELDS = """
attention_bias attention_k_eq_v attention_multiplier attention_out_bias attn_logit_softcapping
block_auto_adjust_ff_dim block_ff_dim block_ffn_dim_multiplier block_multiple_of bos_token_id
clip_qkv conv_L_cache conv_bias decoder_sparse_step dtype embedding_multiplier enable_moe_block
eos_token_id final_logit_softcapping first_k_dense_replace full_attention_interval full_attn_idxs
global_head_dim head_dim hidden_act hidden_activation hidden_size hidden_size_per_layer_input
intermediate_size is_causal layer_types linear_conv_kernel_dim linear_key_head_dim
linear_num_key_heads linear_num_value_heads linear_value_head_dim logits_scaling
max_position_embeddings max_window_layers mlp_bias mlp_only_layers moe_intermediate_size moe_k
moe_layer_end_index moe_layer_interval moe_layer_start_index moe_norm_min moe_num_experts
moe_num_shared_experts moe_topk n_group n_routed_experts n_shared_experts no_rope_layer_interval
no_rope_layers norm_eps norm_topk_prob num_attention_heads num_dense_layers num_experts
num_experts_per_tok num_global_key_value_heads num_hidden_layers num_key_value_heads
num_kv_shared_layers num_local_experts num_nextn_predict_layers num_shared_expert
original_max_position_embeddings partial_rotary_factor per_layer_config position_embedding_type
qkv_bias quantization_config query_pre_attn_scalar residual_multiplier rms_norm_eps
rope_local_base_freq rope_parameters rope_scaling rope_theta rotary_dim routed_scaling_factor
scoring_func shared_expert_intermediate_size shared_intermediate_size sliding_window
sliding_window_pattern swiglu_alpha swiglu_limit tie_embedding tie_word_embeddings top_k_experts
topk_group topk_method use_bias use_bidirectional_attention use_double_wide_mlp use_expert_bias
use_qk_norm use_sliding_window vocab_size vocab_size_per_layer_input
"""
ROPE_FIELDS = """
alpha attention_factor beta_fast beta_slow factor high_freq_factor llama_4_scaling_beta
long_factor low_freq_factor mscale mscale_all_dim original_max_position_embeddings
partial_rotary_factor rope_theta rope_type short_factor truncate type
"""
QUICK: tuple[JSONValue, ...] = (-1, 2**62, float("nan"), "x", [[]], {"a": 1})
NUMBERS: tuple[JSONValue, ...] = (
    *(0, -1, 1, 3, 2**62, 10**400),
    *(0.5, -1e308, 1e308, 1e-320, float("nan"), float("inf")),
)
LISTS: tuple[JSONValue, ...] = (
    [],
    [0],
    [[]],
    [SLIDING] * NUM_LAYERS,
    [FULL] * (NUM_LAYERS - 1),
    ["x"] * NUM_LAYERS,
    [2**62] * NUM_LAYERS,
)
VALUES: tuple[JSONValue, ...] = (*NUMBERS, *LISTS, "", "x", True, False, None, {}, {"a": 1})


@pytest.mark.parametrize("family", FAMILIES)
def test_33_an_absurd_value_is_refused_in_a_sentence_or_makes_a_network(family: str) -> None:
    check_changes(family, QUICK)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_33_many_absurd_values(family: str) -> None:
    check_changes(family, VALUES)


def check_changes(family: str, values: Sequence[JSONValue]) -> None:
    """Never another error, and never a table of rotations that are no numbers."""
    ropes: set[tuple[RopeConfig, int, int]] = set()
    num_networks = num_refusals = 0
    for change in changes(values):
        fields = {**SHAPE, **NEEDED.get(family, {}), "model_type": family, **change}
        config = read(fields)
        if isinstance(config, str):
            num_refusals += 1
            assert config.startswith("config.json: "), change
            assert config.count("\n") == 0, change
            assert len(config) < 400, change
            continue
        num_networks += 1
        for attention in {layer.attention for layer in config.network.layers}:
            if attention is not None and attention.rope is not None:
                ropes.add((attention.rope, attention.head_dim, config.max_position_embeddings))
    for rope, head_dim, longest in ropes:
        assert rotary_table(rope, head_dim, 2, longest).isfinite().all(), rope
    assert num_networks > 100
    assert num_refusals > 50


def read(fields: dict[str, JSONValue]) -> ModelConfig | str:
    """Return what a config.json means, or the sentence that refuses it."""
    try:
        return ModelConfig.from_json(JsonObject("config.json", fields))
    except ModelError as error:
        return str(error)


def changes(values: Sequence[JSONValue]) -> list[dict[str, JSONValue]]:
    """Return each field with each value, and each of rotations, which are one for all layers."""
    fields: list[dict[str, JSONValue]] = [
        {name: each} for name in FIELDS.split() for each in values
    ]
    return fields + [
        {"rope_scaling": {**YARN, name: each}} for name in ROPE_FIELDS.split() for each in values
    ]


def nested(outer: str, **text: JSONValue) -> dict[str, JSONValue]:
    return {"model_type": outer, "text_config": {**SHAPE, **text}}


CONTRADICTIONS: dict[str, tuple[dict[str, JSONValue], str]] = {
    "a window of 0": (
        {"model_type": "mistral", "sliding_window": 0},
        "sliding_window is 0; it must be an integer from 1",
    ),
    "a window of 0 in some layers": (
        {"model_type": "olmo3", "sliding_window": 0},
        "sliding_window is 0; it must be an integer from 1",
    ),
    "a negative theta": (
        {"model_type": "llama", "rope_theta": -10_000.0},
        "rope_theta is -10000.0; it must be a number from 1.001",
    ),
    "a negative theta of the layers that slide": (
        {
            "model_type": "gemma3_text",
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": 1e6},
                SLIDING: {"rope_type": "default", "rope_theta": -1e4},
            },
        },
        "rope_parameters: sliding_attention: rope_theta is -10000.0; it must be a number from",
    ),
    "more layer types than layers": (
        {"model_type": "olmo3", "layer_types": [SLIDING, FULL] * 50_000},
        "for each of 4 layers",
    ),
    "layer types within layer types": (
        {"model_type": "olmo3", "layer_types": [[SLIDING], [FULL]] * 2},
        "for each of 4 layers",
    ),
    "a layer type of a model that is not known": (
        {"model_type": "qwen3", "layer_types": [FULL, "mamba"] * 2},
        "for each of 4 layers",
    ),
    "more experts a token than experts": (
        {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5},
        "num_experts_per_tok is 5; it must be an integer from 1 to 4",
    ),
    "more experts than anyone can list": (
        {"model_type": "qwen3_moe", "num_experts": 2**15, "num_hidden_layers": 4096},
        "num_experts is 32768; it must be an integer from 1 to 32",
    ),
    "a decoder of another family": (
        nested("gemma3", model_type="llama"),
        "text_config: model_type is 'llama'; it must be gemma3_text in a folder of gemma3",
    ),
    "a folder in a folder": (
        nested("gemma3", model_type="mistral3", text_config={}),
        "text_config: model_type is 'mistral3'; it must be gemma3_text in a folder of gemma3",
    ),
    "a decoder that does not run": (
        nested("mistral3", model_type="mistral4"),
        "text_config: model_type is 'mistral4', which pagedrun does not support yet",
    ),
    "no decoder": ({**SHAPE, "model_type": "mistral3"}, "text_config is missing"),
    "a decoder that is a list": (
        {"model_type": "mistral3", "text_config": [SHAPE]},
        "text_config is [{",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_33_s13_a_config_that_cannot_be_gets_one_sentence(tmp_path: Path, name: str) -> None:
    fields, words = CONTRADICTIONS[name]
    config: dict[str, Any] = fields if "text_config" in fields else {**SHAPE, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_folder(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert words in str(caught.value)
    assert str(caught.value).count("\n") == 0
    assert len(str(caught.value)) < 1000


def test_a_decoder_may_be_the_other_one_that_such_folders_hold(tmp_path: Path) -> None:
    fields = nested("mistral3", model_type="ministral3")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert ModelConfig.from_folder(tmp_path).model_type == "ministral3"
