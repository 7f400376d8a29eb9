"""Recurrent layers: what config.json says of them, what follows from it, and folders of the hub."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedrun.paged.models.checkpoint.tensors import GroupedParts
from pagedrun.paged.models.modules.recurrence import DeltaNetSpec, ShortConvSpec
from pagedrun.paged.values.errors import ModelError
from tests.models.configs import FULL, LINEAR, read
from tests.models.driven_model import DrivenModel, Part
from tests.models.stored_shapes import StoredShapes
from tests.support.families import save_tiny
from tests.support.tiny_models import published_config

HUB: list[dict[str, Any]] = [
    {"model_type": "qwen3_5_text"},
    {"model_type": "qwen3_5_text", "full_attention_interval": 2, "head_dim": 32},
    {"model_type": "qwen3_5_text", "layer_types": [LINEAR, FULL] * 3, "linear_key_head_dim": 8},
    {
        "model_type": "qwen3_5_text",
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_conv_kernel_dim": 3,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "mrope_section": [1, 1, 0]},
    },
    {"model_type": "qwen3_5_moe_text", "intermediate_size": "absent", "num_experts": 4},
    {"model_type": "qwen3_next", "intermediate_size": "absent", "num_experts": 4},
    {"model_type": "qwen3_next", "num_experts": 4, "mlp_only_layers": [0], "norm_topk_prob": False},
    {"model_type": "lfm2", "full_attn_idxs": [1, 4], "rope_theta": 5e5},
    {"model_type": "lfm2"},
    {"model_type": "lfm2", "layer_types": ["conv", FULL] * 3, "conv_bias": True, "conv_L_cache": 5},
    {"model_type": "lfm2", "block_ff_dim": 300, "tie_embedding": False, "full_attn_idxs": [0]},
    {"model_type": "lfm2", "block_auto_adjust_ff_dim": False, "full_attn_idxs": [0]},
    {
        "model_type": "lfm2",
        "block_ffn_dim_multiplier": 1.3,
        "block_multiple_of": 8,
        "full_attn_idxs": [0],
        "norm_eps": 1e-4,
    },
]


@pytest.mark.parametrize("fields", HUB, ids=lambda fields: json.dumps(fields)[15:70])
def test_reads_what_transformers_reads(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Names and shapes of all tensors as its classes have them, which says most of it."""
    import transformers

    ours = read(tmp_path, **fields)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    stored = ours.network.stored_as(StoredShapes(shapes))
    assert {each.name: each.shape for each in stored.parameters()} == shapes
    attends = [layer.attention is not None for layer in ours.network.layers]
    assert attends == [kind == FULL for kind in theirs.layer_types]
    attention = next(iter(ours.network.attentions.values()))
    assert (attention.num_kv_heads, attention.window) == (theirs.num_key_value_heads, None)
    rope, expected = attention.rope, theirs.rope_parameters
    assert rope is not None
    assert rope.theta == expected["rope_theta"]
    assert rope.partial_rotary_factor == expected.get("partial_rotary_factor", 1.0)
    eps = theirs.norm_eps if fields["model_type"] == "lfm2" else theirs.rms_norm_eps
    assert ours.network.norm is not None
    assert ours.network.norm.eps == eps
    assert ours.bos_token_id == theirs.bos_token_id


@pytest.mark.parametrize(
    ("name", "mebibytes", "attention_layers"),
    [
        ("qwen3.5-0.8b", 18.6, 6),
        ("qwen3.5-4b", 49.1, 8),
        ("qwen3.5-27b", 146.8, 16),
        ("qwen3.5-35b-a3b", 61.4, 10),
        ("lfm2-1.2b", 0.08, 6),
    ],
)
def test_bytes_of_a_slot(name: str, mebibytes: float, attention_layers: int) -> None:
    """As in docs/models.md; the layers that attend are the only ones with keys and values."""
    network = published_config(name).network
    slot = sum(each.num_bytes for each in network.state_specs("bfloat16"))
    assert slot / 2**20 == pytest.approx(mebibytes, rel=0.03)
    [spec] = network.kv_cache_specs("bfloat16")
    assert spec.num_layers == attention_layers
    assert len(network.state_specs("bfloat16")) == len(network.layers) - attention_layers


def test_the_matrices_of_a_delta_net_are_float32_whatever_the_model() -> None:
    layer = published_config("qwen3.5-0.8b").network.layers[0]
    assert isinstance(layer.recurrent, DeltaNetSpec)
    conv, matrices = layer.recurrent.state_spec("bfloat16").arrays
    assert (conv.shape, conv.dtype) == ((3, 2 * 16 * 128 + 16 * 128), "bfloat16")
    assert (matrices.shape, matrices.dtype) == ((16, 128, 128), "float32")


def test_a_short_convolution_keeps_what_its_kernel_sees() -> None:
    layer = published_config("lfm2-350m").network.layers[0]
    assert isinstance(layer.recurrent, ShortConvSpec)
    [conv] = layer.recurrent.state_spec("bfloat16").arrays
    assert (conv.shape, conv.dtype) == ((2, 1024), "bfloat16")


def test_parts_of_groups_are_brought_together() -> None:
    order = GroupedParts((2, 1), order=(1, 0))
    assert order.rows(9) == [2, 5, 8, 0, 1, 3, 4, 6, 7]


def of_the_hub(folder: Path, target: Path) -> Path:
    """Copy a folder of `qwen3_5_moe` as the hub has it: nested, its experts stacked, and more."""
    shutil.copytree(folder, target)
    text = json.loads((folder / "config.json").read_text())
    config = {"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": False}
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    for layer in range(text["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack(
                [tensors.pop(f"{prefix}.{expert}.{part}_proj.weight") for expert in range(8)]
            )
            for part in ("gate", "up", "down")
        )
        tensors[f"{prefix}.gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{prefix}.down_proj"] = down
    renamed = {name.replace("model.", "model.language_model.", 1): t for name, t in tensors.items()}
    renamed["model.visual.patch_embed.weight"] = torch.ones(1)
    renamed["mtp.layers.0.input_layernorm.weight"] = torch.ones(1)
    save_file(renamed, target / "model.safetensors")
    return target


def test_a_folder_as_the_hub_has_it_gives_the_same_logits(tmp_path: Path) -> None:
    save_tiny("qwen3_5_moe", tmp_path / "plain")
    part = Part(0, list(range(40)), [], 0, 40)
    expected = DrivenModel(tmp_path / "plain", 1).step(part)
    nested = of_the_hub(tmp_path / "plain", tmp_path / "hub")
    assert torch.equal(DrivenModel(nested, 1).step(part), expected)


def test_heads_that_guess_are_left_in_the_file(tmp_path: Path) -> None:
    save_tiny("qwen3_5", tmp_path)
    path = tmp_path / "model.safetensors"
    part = Part(0, [1, 2, 3], [], 0, 3)
    expected = DrivenModel(tmp_path, 1).step(part)
    tensors = {name: each.clone() for name, each in load_file(path).items()}
    save_file({**tensors, "mtp.norm.weight": torch.ones(1)}, path)
    assert torch.equal(DrivenModel(tmp_path, 1).step(part), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("linear_attn.conv1d.weight", r"conv1d\.weight is \[.*\] and must be \[96, 1, 4\]"),
        ("linear_attn.A_log", r"A_log is \[3\] and must be \[4\]"),
        ("linear_attn.in_proj_qkv.weight", r"in_proj_qkv\.weight is \[95, 64\] and must be"),
    ],
)
def test_misshapen_tensors_are_refused(tmp_path: Path, name: str, message: str) -> None:
    save_tiny("qwen3_5", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {key: each.clone() for key, each in load_file(path).items()}
    key = f"model.layers.0.{name}"
    assert math.prod(tensors[key].shape) > 1
    tensors[key] = tensors[key][:-1].clone()
    save_file(tensors, path)
    with pytest.raises(ModelError, match=message):
        DrivenModel(tmp_path, 1)
