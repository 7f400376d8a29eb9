"""Random weights of a benchmark on disk, for programs that read files: a folder or a GGUF file."""

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pagedrun.paged.bench.workload import BenchModel
from pagedrun.paged.values.errors import UsageError, option

# Names of architectures in GGUF, by those of config.json. The last two rotate neighbours, so that
# the rows of queries and keys change places.
ARCHITECTURES = {"qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama", "mistral": "llama"}
TURN_NEIGHBOURS = ("llama", "mistral")


def save_folder(model: BenchModel, dtype: torch.dtype, folder: Path) -> Path:
    """Write random weights as a folder that Transformers reads; return it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    fields = dict(model.fields or {})
    name = str(dtype).removeprefix("torch.")
    config = {
        **fields,
        "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[fields["model_type"]]],
        "torch_dtype": name,
        "dtype": name,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(dict(tensors(model, dtype)), folder / "model.safetensors", {"format": "pt"})
    return folder


def save_gguf(model: BenchModel, dtype: torch.dtype, path: Path) -> Path:
    """Write random weights as a GGUF file without a tokenizer; return it.

    Matrices are stored in `dtype`, norms and biases in float32, as llama.cpp needs them.
    """
    import gguf

    fields = dict(model.fields or {})
    architecture = ARCHITECTURES[fields["model_type"]]
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(fields["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    kinds = gguf.GGMLQuantizationType
    kind = {
        torch.bfloat16: kinds.BF16,
        torch.float16: kinds.F16,
        torch.float32: kinds.F32,
    }[dtype]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_layers)
    scaling = fields.get("rope_scaling")
    if scaling is not None:
        factors = rotary_factors(scaling, fields["rope_theta"], config.head_dim)
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    for name, tensor in tensors(model, dtype):
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        if fields["model_type"] in TURN_NEIGHBOURS:
            tensor = turned(tensor, name, config.num_heads, config.num_kv_heads)
        if tensor.dim() == 1:
            writer.add_tensor(theirs, tensor.float().numpy())
        else:
            writer.add_tensor(theirs, tensor.view(torch.uint8).numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check_gguf(model: BenchModel) -> None:
    """Raise `UsageError` for a shape that `save_gguf` does not write, or without the package."""
    fields = dict(model.fields or {})
    scaling = fields.get("rope_scaling")
    written = fields["model_type"] in ARCHITECTURES
    if not written or (scaling is not None and scaling.get("rope_type") != "llama3"):
        raise UsageError(
            f"{option('against')} llama.cpp writes random weights as GGUF for shapes of "
            f"{', '.join(ARCHITECTURES)}, and {model.name} is another; take one of these with "
            f"{option('shape')}, or a .gguf file with {option('model')}"
        )
    if importlib.util.find_spec("gguf") is None:
        raise UsageError(
            f"{option('against')} llama.cpp writes random weights as GGUF, which needs the package "
            "gguf; pip install 'gguf>=0.18'"
        )


def tensors(model: BenchModel, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and values of the random weights."""
    weights = model.weights(dtype)
    for parameter in model.config.network.parameters():
        yield parameter.name, weights.read(parameter.name)


def turned(tensor: torch.Tensor, name: str, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """Return a tensor with the rows of a head in the order of a rotation of neighbours."""
    heads = {"q_proj": num_heads, "k_proj": num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def rotary_factors(scaling: Mapping[str, Any], base: float, head_dim: int) -> torch.Tensor:
    """Return the factors of the rotary periods of Llama 3."""
    factor, low, high = (scaling[f"{name}factor"] for name in ("", "low_freq_", "high_freq_"))
    wavelengths = 2 * math.pi * base ** (torch.arange(0, head_dim, 2).double() / head_dim)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    factors: torch.Tensor = 1 / ((1 - smooth) / factor + smooth)
    return factors.float()
