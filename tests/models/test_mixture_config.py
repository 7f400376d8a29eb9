"""Mixtures of experts: what config.json says of them, and the tensors that follow from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.models.decoder_spec import DecoderLayerSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.moe import MoeSpec
from pagedrun.paged.values.errors import ModelError
from tests.models.stored_shapes import StoredShapes

SHAPE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe"]


def read(folder: Path, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**SHAPE, **fields}), encoding="utf-8")
    return ModelConfig.from_folder(folder)


def mixtures(config: ModelConfig) -> list[MoeSpec | None]:
    """Return each layer's mixture, None where it is dense."""
    found: list[MoeSpec | None] = []
    for layer in config.network.layers:
        assert isinstance(layer, DecoderLayerSpec)
        found.append(layer.ffn if isinstance(layer.ffn, MoeSpec) else None)
    return found


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
    found = mixtures(ours)[0]
    assert found is not None
    assert found.num_chosen == theirs.num_experts_per_tok
    assert found.router.choice.normalize == getattr(theirs, "norm_topk_prob", True)
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
        ({"decoder_sparse_step": 2}, [0, 2]),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, [0, 1, 2, 3]),
        ({"mlp_only_layers": None}, []),
    ],
)
def test_some_layers_are_dense(
    tmp_path: Path, family: str, fields: dict[str, Any], dense: list[int]
) -> None:
    config = read(tmp_path, model_type=family, **fields)
    assert [i for i, each in enumerate(mixtures(config)) if each is None] == dense


def test_the_number_of_experts_has_two_names(tmp_path: Path) -> None:
    hub = read(tmp_path, model_type="qwen3_moe", num_experts=6, num_experts_per_tok=2)
    saved = read(tmp_path, model_type="qwen3_moe", num_local_experts=6, num_experts_per_tok=2)
    assert hub == saved
    assert all(each is not None and each.experts.num_experts == 6 for each in mixtures(hub))


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
    assert read(tmp_path, **fields).windows == (window,) * 4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_local_experts": 0}, "num_local_experts"),
        ({"num_local_experts": 10**9}, "num_local_experts"),
        ({"num_local_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config"),
    ],
)
def test_absurd_mixtures_are_refused(
    tmp_path: Path, family: str, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named) as caught:
        read(tmp_path, model_type=family, **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"mlp_only_layers": 3}, "mlp_only_layers"),
        ({"mlp_only_layers": ["0"]}, "mlp_only_layers"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
        ({"moe_intermediate_size": -1}, "moe_intermediate_size"),
    ],
)
def test_absurd_qwen_mixtures_are_refused(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        read(tmp_path, model_type="qwen3_moe", **fields)
