"""GGUF copies of model folders, as llama.cpp's converter makes them, by the package gguf."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from pagedrun.paged.files.gguf import BLOCK_TYPES
from tests.conftest import MakeModel

_ARCH = gguf.MODEL_ARCH
# By model types of transformers.
ARCHITECTURES = {
    "gemma2": _ARCH.GEMMA2,
    "gemma3_text": _ARCH.GEMMA3,
    "granite": _ARCH.GRANITE,
    "lfm2": _ARCH.LFM2,
    "llama": _ARCH.LLAMA,
    "mixtral": _ARCH.LLAMA,
    "olmo2": _ARCH.OLMO2,
    "phi3": _ARCH.PHI3,
    "qwen2": _ARCH.QWEN2,
    "qwen3": _ARCH.QWEN3,
    "qwen3_moe": _ARCH.QWEN3MOE,
    "smollm3": _ARCH.SMOLLM3,
}
TURN_NEIGHBOURS = ("granite", "llama", "mixtral", "smollm3")
# Fields of config.json, by the metadata's.
FIELDS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
    "shortconv.l_cache": "conv_L_cache",
}
_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(w[123]|gate_proj|up_proj|down_proj)\.weight")
_BYTES = {each.name: each for each in BLOCK_TYPES.values()}
KindOf = Callable[[str], str]
Change = Callable[[gguf.GGUFWriter], object]


def write_gguf(
    folder: Path,
    path: Path,
    kind_of: KindOf,
    *,
    change: Change = lambda writer: None,
    **writer_options: Any,
) -> dict[str, torch.Tensor]:
    """Write a folder's model as GGUF, matrices in the kinds that `kind_of` says by their names.

    `change` may add or break something. Returns what the tensors mean, by the folder's names.
    """
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    architecture = ARCHITECTURES[family]
    name_of_architecture = gguf.MODEL_ARCH_NAMES[architecture]
    writer = gguf.GGUFWriter(path, name_of_architecture, **writer_options)
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    tensors = load_file(folder / "model.safetensors")
    if family == "lfm2":  # as it is, not as it is worked out
        inner = len(tensors["model.layers.0.feed_forward.w1.weight"])
        kinds = config["layer_types"]
        writer.add_feed_forward_length(inner)
        writer.add_head_count_kv([num_kv_heads * (kind != "conv") for kind in kinds])
    else:
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count_kv(num_kv_heads)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(num_heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    writer.add_key_length(head_dim)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    add_fields(writer, name_of_architecture, config)
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    add_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    meant = {}
    for name, tensor in stacked(tensors).items():
        values = tensor.float()
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        if family.startswith("gemma") and name.endswith("norm.weight"):
            meant[name] = values + 1 - 1
            writer.add_tensor(theirs, (values + 1).numpy())
            continue
        if name.endswith("conv.conv.weight"):
            meant[name] = values
            writer.add_tensor(theirs, values.squeeze(1).numpy())
            continue
        heads = {"q_proj": num_heads, "k_proj": num_kv_heads}.get(name.split(".")[-2], 0)
        turns = family in TURN_NEIGHBOURS and heads > 0
        if turns:
            values = permuted(values, heads)
        kind = kind_of(name) if values.dim() >= 2 else "F32"
        stored, weights = quantized(values.numpy(), kind)
        writer.add_tensor(theirs, stored, raw_dtype=None if kind[0] in "FB" else Kind[kind])
        meant |= apart(name, unpermuted(weights, heads) if turns else weights)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def add_fields(writer: gguf.GGUFWriter, architecture: str, config: dict[str, Any]) -> None:
    """Write what only some architectures have."""
    for theirs, ours in FIELDS.items():
        value = config.get(ours)
        if isinstance(value, float):
            writer.add_float32(f"{architecture}.{theirs}", value)
        elif value is not None:
            writer.add_uint32(f"{architecture}.{theirs}", value)
    num_experts = config.get("num_local_experts") or config.get("num_experts")
    if num_experts:
        writer.add_expert_count(num_experts)


def stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with those of the experts of a layer as one for each projection."""
    found: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            found[name] = tensor
        else:
            of_all = f"{match[1]}.experts.{match[3]}.weight"
            experts.setdefault(of_all, {})[int(match[2])] = tensor
    stacks = {name: torch.stack([of[i] for i in range(len(of))]) for name, of in experts.items()}
    return found | stacks


def apart(name: str, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return each expert's tensor by itself, by the folder's names."""
    if ".experts." not in name:
        return {name: weights}
    block, projection = name.split(".experts.")
    return {f"{block}.experts.{i}.{projection}": each for i, each in enumerate(weights)}


def quantized(values: np.ndarray, kind: str) -> tuple[np.ndarray, torch.Tensor]:
    """Return how a matrix is stored, and the weights that this means, in float32.

    gguf cannot write the kinds with "K": their blocks are random ones.
    """
    if kind == "F32":
        return values, torch.from_numpy(values)
    if kind == "F16":
        stored = values.astype(np.float16)
        return stored, torch.from_numpy(stored.astype(np.float32))
    if kind.endswith("_K"):
        stored = random_blocks(values, kind)
    else:
        stored = gguf.quants.quantize(values, Kind[kind])
    return stored, torch.from_numpy(gguf.quants.dequantize(stored, Kind[kind]))


def random_blocks(values: np.ndarray, kind: str) -> np.ndarray:
    """Return rows of blocks in which every half is a small finite number."""
    random, block = np.random.default_rng(3), _BYTES[kind]
    shape = (*values.shape[:-1], values.shape[-1] // block.num_weights)
    blocks = random.integers(0, 256, (*shape, block.num_bytes), dtype=np.uint8)
    for at in (208,) if kind == "Q6_K" else (0, 2):
        halves = random.normal(0, 2e-5, (*shape, 1)).astype(np.float16)
        blocks[..., at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    """Write what tokenizer.json and tokenizer_config.json say."""
    fields = json.loads((folder / "tokenizer.json").read_text())
    by_id = {number: text for text, number in fields["model"]["vocab"].items()}
    control = {token["id"]: token["content"] for token in fields["added_tokens"]}
    tokens = [(by_id | control)[number] for number in range(max(by_id | control) + 1)]
    merges = fields["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number in control else 1 for number in range(len(tokens))])
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    config_path = folder / "tokenizer_config.json"
    config = json.loads(config_path.read_text()) if config_path.exists() else {}
    if config.get("eos_token") in tokens:
        writer.add_eos_token_id(tokens.index(config["eos_token"]))
    if config.get("chat_template"):
        writer.add_chat_template(config["chat_template"])


def permuted(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return rows in the order of llama.cpp: what turns together lies side by side."""
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return halves.transpose(1, 2).reshape(values.shape).contiguous()


def unpermuted(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape).contiguous()


def wide(make_model: MakeModel, family: str, **fields: Any) -> Path:
    """Return a model whose rows are a block of the kinds with "K", or more."""
    return make_model(family, "gguf-wide", hidden_size=256, intermediate_size=512, **fields)


# As Q4_K_M mixes them.
def mixed(name: str) -> str:
    if "v_proj" in name or "down_proj" in name or "embed" in name:
        return "Q6_K"
    if "o_proj" in name:  # its rows are shorter than a block of the others
        return "Q5_0"
    return "Q5_K" if "gate_proj" in name else "Q4_K"
