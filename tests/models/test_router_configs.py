"""Routers: what config.json says of them, and what stands for it where it is silent."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.models.decoder_spec import DecoderLayerSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.moe import MoeSpec
from pagedrun.paged.values.errors import ModelError

SHAPE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
CONV: dict[str, Any] = {"layer_types": ["conv", "full_attention"] * 2}
HYBRID: dict[str, Any] = {"model_type": "granitemoehybrid", "layer_types": ["attention"] * 4}
DOTS: dict[str, Any] = {
    "model_type": "dots1",
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
}


def read(folder: Path, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**SHAPE, **fields}), encoding="utf-8")
    return ModelConfig.from_folder(folder)


def mixtures(config: ModelConfig) -> list[MoeSpec | None]:
    """Return each layer's mixture, None where it is dense."""
    layers = config.network.layers
    ffns = [layer.ffn for layer in layers if isinstance(layer, DecoderLayerSpec)]
    return [each if isinstance(each, MoeSpec) else None for each in ffns]


# What config.json says, beside what transformers calls the widths of an expert and of what all
# tokens pass, 0 for nothing.
SILENT: list[tuple[dict[str, Any], str, str]] = [
    ({"model_type": "glm4_moe"}, "moe_intermediate_size", "moe_intermediate_size"),
    (
        {"model_type": "glm4_moe", "n_group": 8, "topk_group": 3, "first_k_dense_replace": 2},
        "moe_intermediate_size",
        "moe_intermediate_size",
    ),
    ({"model_type": "glm4_moe", "norm_topk_prob": False, "routed_scaling_factor": 2.5}, "", ""),
    ({"model_type": "ernie4_5_moe"}, "moe_intermediate_size", ""),
    ({"model_type": "ernie4_5_moe", "moe_layer_interval": 2, "moe_layer_end_index": 2}, "", ""),
    ({"model_type": "olmoe"}, "intermediate_size", "0"),
    ({"model_type": "minimax_m2"}, "intermediate_size", "0"),
    ({"model_type": "lfm2_moe", **CONV}, "moe_intermediate_size", "0"),
    ({"model_type": "lfm2_moe", **CONV, "num_dense_layers": 0}, "", ""),
    ({"model_type": "hunyuan_v1_moe", "num_experts": 4}, "intermediate_size", "intermediate_size"),
    ({"model_type": "granitemoe"}, "intermediate_size", "0"),
    ({"model_type": "granitemoeshared"}, "intermediate_size", "0"),
    ({**HYBRID}, "intermediate_size", "shared_intermediate_size"),
    ({**DOTS}, "moe_intermediate_size", ""),
    ({**DOTS, "first_k_dense_replace": 3, "norm_topk_prob": True}, "", ""),
]


@pytest.mark.parametrize(("fields", "inner", "shared"), SILENT, ids=lambda each: str(each)[:60])
def test_mixtures_are_those_of_transformers(
    tmp_path: Path, fields: dict[str, Any], inner: str, shared: str
) -> None:
    """Which layers have one, of how many experts, how many are chosen, and what is shared."""
    import torch
    import transformers

    ours = mixtures(read(tmp_path, **fields))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    blocks = [
        getattr(layer, "block_sparse_moe", None)
        or getattr(layer, "feed_forward", None)
        or layer.mlp
        for layer in model.model.layers
    ]
    assert [each is not None for each in ours] == [hasattr(each, "experts") for each in blocks]
    for found, block in zip(ours, blocks, strict=True):
        if found is None:
            continue
        assert found.experts.num_experts == block.experts.num_experts
        router = getattr(block, "gate", None) or block.router
        choice = found.router.choice
        assert choice.num_chosen == router.top_k
        assert choice.num_groups == getattr(theirs, "n_group", 1)
        assert choice.num_chosen_groups == getattr(theirs, "topk_group", 1)
        assert choice.scaling == getattr(theirs, "routed_scaling_factor", 1.0)
        if hasattr(theirs, "norm_topk_prob"):
            assert choice.normalize == theirs.norm_topk_prob
        names = {name for name, _ in block.named_buffers()}
        names |= {name for name, _ in block.named_parameters()}
        is_corrected = any("bias" in name for name in names)
        assert (found.router.correction is not None) == is_corrected
        assert found.experts.intermediate_size == block.experts.intermediate_dim
        if inner:
            assert found.experts.intermediate_size == getattr(theirs, inner)
        if shared:
            width = 0 if found.shared is None else found.shared.intermediate_size
            assert width == (0 if shared == "0" else getattr(theirs, shared))


def test_a_correction_may_be_missing(tmp_path: Path) -> None:
    found = mixtures(read(tmp_path, model_type="lfm2_moe", **CONV, use_expert_bias=False))
    assert [None if each is None else each.router.correction for each in found] == [None] * 4


def test_dense_granite_4_has_no_experts(tmp_path: Path) -> None:
    assert mixtures(read(tmp_path, **HYBRID, num_local_experts=0)) == [None] * 4


def test_numbers_listed_for_each_layer_may_be_alike(tmp_path: Path) -> None:
    """As Hunyuan's files have them."""
    listed: dict[str, Any] = {
        "moe_topk": [2] * 4,
        "moe_intermediate_size": [96] * 4,
        "num_shared_expert": [1] * 4,
    }
    plain = read(tmp_path, model_type="hunyuan_v1_moe", num_experts=4, moe_topk=2)
    assert read(tmp_path, model_type="hunyuan_v1_moe", num_experts=4, **listed) == plain


GLM: dict[str, Any] = {"model_type": "glm4_moe"}
ERNIE: dict[str, Any] = {"model_type": "ernie4_5_moe"}
HUNYUAN: dict[str, Any] = {"model_type": "hunyuan_v1_moe", "num_experts": 4}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**GLM, "n_routed_experts": 0}, "n_routed_experts"),
    ({**GLM, "n_routed_experts": 10**9}, "n_routed_experts"),
    ({**GLM, "num_experts_per_tok": 129}, "num_experts_per_tok"),
    ({**GLM, "n_group": 7}, "n_group"),
    ({**GLM, "n_group": 128}, "n_group"),  # the best two of one
    ({**GLM, "n_group": 10**12}, "n_group"),
    ({**GLM, "n_group": 4, "topk_group": 5}, "topk_group"),
    ({**GLM, "n_group": 64, "topk_group": 2}, "num_experts_per_tok"),  # 8 of 4
    ({**GLM, "routed_scaling_factor": -1.0}, "routed_scaling_factor"),
    ({**GLM, "routed_scaling_factor": 0}, "routed_scaling_factor"),
    ({**GLM, "scoring_func": "softmax"}, "scoring_func"),
    ({**GLM, "topk_method": "greedy"}, "topk_method"),
    ({**GLM, "n_shared_experts": -1}, "n_shared_experts"),
    ({**GLM, "first_k_dense_replace": -1}, "first_k_dense_replace"),
    ({**GLM, "moe_intermediate_size": 0}, "moe_intermediate_size"),
    ({**GLM, "num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers"),
    ({**GLM, "partial_rotary_factor": -0.5}, "partial_rotary_factor"),
    ({**GLM, "rope_theta": -1e4}, "rope_theta"),
    ({**GLM, "hidden_act": "gelu"}, "hidden_act"),
    ({"model_type": "dots1"}, "n_routed_experts"),
    ({**DOTS, "sliding_window": 0}, "sliding_window"),
    ({**DOTS, "layer_types": ["sliding_attention"] * 9}, "layer_types"),
    ({**ERNIE, "moe_num_experts": 0}, "moe_num_experts"),
    ({**ERNIE, "moe_k": 65}, "moe_k"),
    ({**ERNIE, "moe_layer_interval": 0}, "moe_layer_interval"),
    ({**ERNIE, "moe_norm_min": 1.0}, "moe_norm_min"),
    ({**ERNIE, "use_bias": True}, "use_bias"),
    ({"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv"),
    ({"model_type": "olmoe", "num_experts_per_tok": 65}, "num_experts_per_tok"),
    ({"model_type": "minimax_m2", "rotary_dim": 9}, "rotary_dim"),
    ({"model_type": "minimax_m2", "scoring_func": "softmax"}, "scoring_func"),
    ({"model_type": "minimax_m2", "num_local_experts": 0}, "num_local_experts"),
    ({"model_type": "lfm2_moe", **CONV, "num_experts_per_tok": 33}, "num_experts_per_tok"),
    ({"model_type": "lfm2_moe", "layer_types": ["conv"] * 4}, "layer_types"),
    ({**HUNYUAN, "moe_topk": [1, 2, 1, 2]}, "moe_topk"),
    ({**HUNYUAN, "moe_topk": []}, "moe_topk"),
    ({**HUNYUAN, "moe_topk": 5}, "moe_topk"),
    ({**HUNYUAN, "moe_intermediate_size": 7}, "moe_intermediate_size"),
    ({**HUNYUAN, "num_shared_expert": [2] * 4}, "num_shared_expert"),
    ({"model_type": "granitemoe", "num_local_experts": 0}, "num_local_experts"),
    ({**HYBRID, "layer_types": ["mamba", "attention"] * 2}, "layer_types"),
    ({**HYBRID, "layer_types": None}, "layer_types"),
    ({**HYBRID, "position_embedding_type": "alibi"}, "position_embedding_type"),
    ({**HYBRID, "shared_intermediate_size": 0}, "shared_intermediate_size"),
    ({**GLM, "quantization_config": {"quant_method": "mxfp4"}}, "quantization_config"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=lambda each: str(each)[:60])
def test_absurd_routers_are_refused_with_a_sentence(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named) as caught:
        read(tmp_path, **fields)
    message = str(caught.value)
    assert str(tmp_path / "config.json") in message
    assert "\n" not in message
    assert len(message) < 600
