"""Encoders' config.json files, as they are published: names and shapes, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from pagedrun.paged.models.checkpoint.tensors import NO_TENSORS
from pagedrun.paged.models.families.registry import ENCODERS, FAMILIES, NESTED, WITHOUT_VECTORS
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.values.errors import ModelError
from tests.models.configs import write
from tests.support.families import TINY

_BASE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
}
# Fields that matter of config.json files on the hub, and the longest text of their models.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "sentence-transformers/all-mpnet-base-v2": (
        {
            **_BASE,
            "model_type": "mpnet",
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 514,
            "pad_token_id": 1,
            "relative_attention_num_buckets": 32,
            "vocab_size": 30527,
        },
        512,
    ),
    "microsoft/deberta-v3-base": (
        {
            **_BASE,
            "model_type": "deberta-v2",
            "hidden_act": "gelu",
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "layer_norm_eps": 1e-7,
            "max_relative_positions": -1,
            "position_biased_input": False,
            "type_vocab_size": 0,
            "vocab_size": 128100,
        },
        512,
    ),
    "google/electra-base-discriminator": (
        {**_BASE, "model_type": "electra", "embedding_size": 768, "vocab_size": 30522},
        512,
    ),
    "google/electra-small-discriminator": (
        {
            **_BASE,
            "model_type": "electra",
            "embedding_size": 128,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 4,
            "vocab_size": 30522,
        },
        512,
    ),
    "albert/albert-base-v2": (
        {
            **_BASE,
            "model_type": "albert",
            "embedding_size": 128,
            "hidden_act": "gelu_new",
            "inner_group_num": 1,
            "num_hidden_groups": 1,
            "vocab_size": 30000,
        },
        512,
    ),
}


def described(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return PooledModelSpec.read_network(folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_name_the_tensors_of_transformers(name: str, tmp_path: Path) -> None:
    fields, longest = PUBLISHED[name]
    ours = described(tmp_path, fields)
    with torch.device("meta"):
        theirs = AutoModel.from_config(AutoConfig.for_model(**fields))
    expected = {
        f"model.{each}": tuple(tensor.shape)
        for each, tensor in theirs.state_dict().items()
        if not each.startswith("pooler.")
    }
    found = {each.name: each.shape for each in ours.network.parameters(NO_TENSORS)}
    assert found == expected
    assert len(ours.network.parameters()) == len(expected)  # none is counted twice
    assert ours.network.num_weights == sum(
        tensor.numel() for each, tensor in theirs.state_dict().items() if "pooler." not in each
    )
    assert ours.max_position_embeddings == longest


NOMIC = {
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 30528,
}


def test_both_styles_of_nomic_describe_one_network(tmp_path: Path) -> None:
    """nomic-embed-text-v1.5 as it is published, and as transformers 5 would write it."""
    published = described(tmp_path, NOMIC)
    fields = {**_BASE, "model_type": "nomic_bert", "vocab_size": 30528, "layer_norm_eps": 1e-12}
    rope = {"rope_theta": 1000.0, "rope_type": "default"}
    other = described(
        tmp_path, {**fields, "max_position_embeddings": 8192, "rope_parameters": rope}
    )
    assert published.network == other.network
    assert published.max_position_embeddings == 8192
    # nomic-embed-text-v1: longer texts have rotations by their length.
    scaled = described(tmp_path, {**NOMIC, "rotary_scaling_factor": 2})
    assert scaled.max_position_embeddings == 2048


DEBERTA = PUBLISHED["microsoft/deberta-v3-base"][0]
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (DEBERTA, {"conv_kernel_size": 3}, "conv_kernel_size"),
    (DEBERTA, {"embedding_size": 128}, "embedding_size"),
    (DEBERTA, {"attention_head_size": 32}, "attention_head_size"),
    (DEBERTA, {"pos_att_type": "p2c|p2p"}, "pos_att_type"),
    (DEBERTA, {"pos_att_type": 7}, "pos_att_type"),
    (DEBERTA, {"norm_rel_ebd": "rms_norm"}, "norm_rel_ebd"),
    (DEBERTA, {"position_buckets": 1}, "position_buckets"),
    (DEBERTA, {"position_buckets": 1024}, "position_buckets"),
    (DEBERTA, {"hidden_act": "tanh"}, "hidden_act"),
    ({**_BASE, "model_type": "mpnet"}, {"relative_attention_num_buckets": 16}, "num_buckets"),
    ({**_BASE, "model_type": "mpnet"}, {"max_position_embeddings": 2}, "max_position_embeddings"),
    ({**_BASE, "model_type": "albert"}, {"num_hidden_groups": 13}, "num_hidden_groups"),
    ({**_BASE, "model_type": "electra"}, {"is_decoder": True}, "is_decoder"),
    ({**_BASE, "model_type": "gte"}, {"hidden_act": "relu"}, "hidden_act"),
    (NOMIC, {"moe_every_n_layers": 2}, "moe_every_n_layers"),
    (NOMIC, {"prenorm": True}, "prenorm"),
    (NOMIC, {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
    (NOMIC, {"qkv_proj_bias": True}, "qkv_proj_bias"),
    (NOMIC, {"rotary_emb_scale_base": 512.0}, "rotary_emb_scale_base"),
]


@pytest.mark.parametrize(("base", "fields", "named"), REFUSED)
def test_fields_that_change_numbers_are_refused_by_name(
    base: dict[str, Any], fields: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        described(tmp_path, {"vocab_size": 100, **base, **fields})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_type_that_embed_does_not_have_is_told_of_those_that_it_has(tmp_path: Path) -> None:
    for model_type in ("longformer", "deepseek_v3", "nonsense"):
        with pytest.raises(ModelError) as caught:
            PooledModelSpec.read_network(write(tmp_path, model_type=model_type))
        message = str(caught.value)
        if model_type != "deepseek_v3":
            assert ", ".join(ENCODERS) in message
        assert "qwen3, " in message
        assert "qwen3_next" not in message
        assert "model_impl" not in message  # a setting that these tasks do not have


@pytest.mark.parametrize("model_type", ["longformer", "deberta", "big_bird", "electra", "roberta"])
def test_generate_refuses_encoders_without_advice_that_fails(
    model_type: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_folder(write(tmp_path, model_type=model_type))
    message = str(caught.value)
    assert "an encoder, which generates no text" in message
    assert "model_impl" not in message


def test_decoders_without_vectors_are_those_with_recurrent_layers(tmp_path: Path) -> None:
    assert {*WITHOUT_VECTORS} <= {*FAMILIES, *NESTED}
    for model_type in {*TINY} & {*FAMILIES}:
        folder = tmp_path / model_type
        TINY[model_type].config().save_pretrained(folder)
        is_recurrent = not ModelConfig.from_folder(folder).network.is_capturable
        if model_type in WITHOUT_VECTORS:
            assert is_recurrent
            with pytest.raises(ModelError, match="recurrent layers"):
                PooledModelSpec.read_network(folder)
