"""Mixtures of experts and their routers: fields of config.json, and defaults of Transformers."""

from pathlib import Path
from typing import Any

import pytest

from tests.models.configs import FULL, moe_layers, read
from tests.models.stored_shapes import StoredShapes

FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe"]


@pytest.mark.parametrize("fields", [{}, {"num_experts_per_tok": 1, "norm_topk_prob": True}])
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_model_class(
    tmp_path: Path, family: str, fields: dict[str, Any]
) -> None:
    """In the layout that Transformers computes with, and with the defaults that it assumes."""
    import torch
    import transformers

    ours = read(tmp_path, model_type=family, num_hidden_layers=2, **fields)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(theirs).state_dict()
    name_of_block = "block_sparse_moe" if family == "mixtral" else "mlp"
    shapes = {
        name.replace(".mlp.", f".{name_of_block}."): tuple(tensor.shape)
        for name, tensor in state.items()
    }
    stored = ours.network.stored_as(StoredShapes(shapes))
    assert {each.name: each.shape for each in stored.parameters()} == shapes
    separate = ours.network.parameters()
    assert sum(each.num_weights for each in separate) == sum(
        each.num_weights for each in stored.parameters()
    )
    found = moe_layers(ours)[0]
    assert found is not None
    assert found.num_chosen == theirs.num_experts_per_tok
    assert found.router.choice.normalize == getattr(theirs, "norm_topk_prob", True)
    assert ours.network.norm is not None
    assert ours.network.norm.eps == theirs.rms_norm_eps
    [rope] = {each.rope for each in ours.network.attentions.values()}
    assert rope is not None
    assert rope.theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize(
    ("fields", "dense"),
    [
        ({}, []),
        ({"mlp_only_layers": [1, 2]}, [1, 2]),
        ({"decoder_sparse_step": 2}, [0, 2, 4]),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, [0, 1, 2, 3, 4]),
        ({"mlp_only_layers": None}, []),
    ],
)
def test_some_layers_are_dense(
    tmp_path: Path, family: str, fields: dict[str, Any], dense: list[int]
) -> None:
    config = read(tmp_path, model_type=family, **fields)
    assert [i for i, each in enumerate(moe_layers(config)) if each is None] == dense


def test_the_number_of_experts_has_two_names(tmp_path: Path) -> None:
    hub = read(tmp_path, model_type="qwen3_moe", num_experts=6, num_experts_per_tok=2)
    saved = read(tmp_path, model_type="qwen3_moe", num_local_experts=6, num_experts_per_tok=2)
    assert hub == saved
    assert all(each is not None and each.experts.num_experts == 6 for each in moe_layers(hub))


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "qwen2_moe"},
        {"model_type": "qwen2_moe", "use_sliding_window": True, "sliding_window": 7},
        {
            "model_type": "qwen2_moe",
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 2,
        },
    ],
)
def test_windows_of_qwen2_are_those_of_transformers(tmp_path: Path, fields: dict[str, Any]) -> None:
    import transformers

    ours = read(tmp_path, **fields)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert ours.windows == tuple(
        theirs.sliding_window if kind == "sliding_attention" else None
        for kind in theirs.layer_types
    )


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"model_type": "mixtral"}, None),
        ({"model_type": "mixtral", "sliding_window": 9}, 9),
        ({"model_type": "qwen3_moe", "sliding_window": 9}, None),
        ({"model_type": "qwen3_moe", "use_sliding_window": True, "sliding_window": 9}, 9),
    ],
)
def test_other_families_have_one_window_or_none(
    tmp_path: Path, fields: dict[str, Any], window: int | None
) -> None:
    assert read(tmp_path, **fields).windows == (window,) * 6


CONV: dict[str, Any] = {"layer_types": ["conv", FULL] * 3}
HYBRID: dict[str, Any] = {"model_type": "granitemoehybrid", "layer_types": ["attention"] * 6}
DOTS: dict[str, Any] = {
    "model_type": "dots1",
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
}


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

    ours = moe_layers(read(tmp_path, head_dim=8, **fields))
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
        width = 0 if found.shared is None else found.shared.intermediate_size
        if (all_pass := getattr(block, "shared_experts", None)) is not None:
            assert width == all_pass.gate_proj.out_features
        if shared:
            assert width == (0 if shared == "0" else getattr(theirs, shared))


def test_a_correction_may_be_missing(tmp_path: Path) -> None:
    found = moe_layers(read(tmp_path, model_type="lfm2_moe", **CONV, use_expert_bias=False))
    assert [None if each is None else each.router.correction for each in found] == [None] * 6


def test_dense_granite_4_has_no_experts(tmp_path: Path) -> None:
    assert moe_layers(read(tmp_path, **HYBRID, num_local_experts=0)) == [None] * 6


def test_numbers_listed_for_each_layer_may_be_alike(tmp_path: Path) -> None:
    """As Hunyuan's files have them."""
    listed: dict[str, Any] = {
        "moe_topk": [2] * 6,
        "moe_intermediate_size": [96] * 6,
        "num_shared_expert": [1] * 6,
    }
    plain = read(tmp_path, model_type="hunyuan_v1_moe", num_experts=4, moe_topk=2)
    assert read(tmp_path, model_type="hunyuan_v1_moe", num_experts=4, **listed) == plain
