"""GGUF copies of model folders, as llama.cpp's converter makes them, by the package gguf."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from pagedrun.paged.files.gguf.block_type import BLOCK_TYPES

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}
ARCHITECTURES["qwen3"] = gguf.MODEL_ARCH.QWEN3
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
    writer = gguf.GGUFWriter(path, family, **writer_options)
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_kv_heads)
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // num_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    add_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(ARCHITECTURES[family], config["num_hidden_layers"])
    meant = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float()
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None
        heads = {"q_proj": num_heads, "k_proj": num_kv_heads}.get(name.split(".")[-2])
        if family == "llama" and heads:
            values = permuted(values, heads)
        kind = kind_of(name) if values.dim() == 2 else "F32"
        stored, weights = quantized(values.numpy(), kind)
        writer.add_tensor(theirs, stored, raw_dtype=None if kind[0] in "FB" else Kind[kind])
        if family == "llama" and heads:
            weights = unpermuted(weights, heads)
        meant[name] = weights
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


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
    num_blocks = values.shape[1] // block.num_weights
    blocks = random.integers(0, 256, (len(values), num_blocks, block.num_bytes), dtype=np.uint8)
    for at in (208,) if kind == "Q6_K" else (0, 2):
        halves = random.normal(0, 2e-5, (len(values), num_blocks, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(len(values), -1)


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
