"""The config.json equivalent of a GGUF file's metadata."""

from dataclasses import replace

import numpy as np

from pagedrun.paged.files.gguf import GgufFile
from pagedrun.paged.files.gguf_vocabulary import GgufVocabulary
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.gguf_architectures import (
    ROPE_FREQUENCIES,
    Architecture,
    architecture_of,
    head_dim,
)
from pagedrun.paged.models.checkpoint.tensors import InterleavedRotary
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec
from pagedrun.paged.models.layer_spec import LayerSpec
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

# Fields of config.json by GGUF metadata.
_FIELDS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
# longrope is recognized by its tensors.
_SCALINGS = ("none", "linear", "yarn", "longrope")
# Llama 3.1 and later: files have frequencies but not these fields; factor 8 in 3.1, 32 in 3.2.
_LLAMA3: dict[str, JSONValue] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA3_FACTORS = (8.0, 32.0)


def gguf_config(file: GgufFile) -> JsonObject:
    """Return the equivalent fields of config.json.

    Raises `ModelError` for an architecture or variant that cannot be run from GGUF.
    """
    architecture, every = architecture_of(file), JsonObject(str(file.path), file.metadata)
    own = _own_fields(file, every.text("general.architecture"))
    names = {**_FIELDS, **architecture.fields}
    fields: dict[str, JSONValue] = {
        ours: own.get(theirs) for theirs, ours in names.items() if own.has(theirs)
    }
    _refuse_variants(own, architecture)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path}: the matrix token_embd.weight is missing; download it again")
    every_type = {tensor.type.name for tensor in file.tensors.values()}
    fields |= {
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "dtype": "float32" if every_type == {"F32"} else "bfloat16",
        "eos_token_id": [*GgufVocabulary(file).end_ids],
        "bos_token_id": every.get("tokenizer.ggml.bos_token_id"),
        "quantization_config": {"quant_method": "gguf"},
        "rope_scaling": _rope_scaling(file, own),
    }
    return JsonObject(own.origin, {**fields, **architecture.extra_fields(own, file)})


def with_gguf_row_order(network: DecoderSpec, file: GgufFile) -> DecoderSpec:
    """Return the network with the row order of its GGUF file: some use interleaved rotary."""
    if not architecture_of(file).interleaved_rotary:
        return network

    def stored(layer: LayerSpec) -> LayerSpec:
        assert isinstance(layer, DecoderLayerSpec)
        attention = layer.attention
        assert attention is not None
        pairs = InterleavedRotary(attention.head_dim, attention.head_dim)
        query, key, value = attention.qkv.parts
        parts = replace(query, order=pairs), replace(key, order=pairs), value
        qkv = replace(attention.qkv, parts=parts)
        return replace(layer, mixer=replace(attention, qkv=qkv))

    return replace(network, layers=tuple(stored(layer) for layer in network.layers))


def _own_fields(file: GgufFile, architecture: str) -> JsonObject:
    prefix = f"{architecture}."
    return JsonObject(
        f"{file.path}, {architecture}",
        {
            name.removeprefix(prefix): value
            for name, value in file.metadata.items()
            if name.startswith(prefix)
        },
    )


def _refuse_variants(own: JsonObject, architecture: Architecture) -> None:
    """Raise `ModelError` for fields that would change results if ignored."""
    size = head_dim(own)
    whole = () if architecture.partial_rotary else ("rope.dimension_count",)
    for name in ("attention.value_length", *whole):
        if own.integer(name, 1, 2**12, size) != size:
            raise own.error(name, f"{size}, the size of a head")
    if "expert_count" not in architecture.fields and own.integer("expert_count", 0, 2**16, 0):
        raise own.error("expert_count", "0: pagedrun does not support such mixtures of experts")


def _rope_scaling(file: GgufFile, own: JsonObject) -> JSONValue:
    kind = own.string("rope.scaling.type") or "none"
    if kind not in _SCALINGS:
        raise own.error("rope.scaling.type", f"one of {', '.join(_SCALINGS)}")
    if ROPE_FREQUENCIES in file.tensors:
        return {**_LLAMA3, "factor": _llama3_factor(file, own)}
    if kind in ("none", "longrope"):
        return None
    scaling: dict[str, JSONValue] = {
        "rope_type": kind,
        "factor": own.number("rope.scaling.factor", 1.0, 1e6),
    }
    original = own.get("rope.scaling.original_context_length")
    if kind == "yarn" and original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3_factor(file: GgufFile, own: JsonObject) -> float:
    """Return the RoPE scaling factor of Llama 3, recovered from the stored frequencies.

    The tensor has the multiplier of each pair's period, from 1 up to the factor.
    """
    tensor = file.tensors[ROPE_FREQUENCIES]
    if tensor.type.name != "F32":
        raise ModelError(f"{file.path}: {ROPE_FREQUENCIES} is not stored as F32")
    stretched = file.bytes_of(ROPE_FREQUENCIES).view(np.float32)
    theta = own.number("rope.freq_base", 1.001, 1e15, 10_000.0)
    for factor in _LLAMA3_FACTORS:
        if np.allclose(stretched, _llama3_periods(theta, len(stretched), factor), rtol=1e-3):
            return factor
    raise ModelError(
        f"{file.path}: {ROPE_FREQUENCIES} differs from the frequencies of Llama 3.1 to "
        "3.3; use the safetensors version of the model"
    )


def _llama3_periods(theta: float, num_pairs: int, factor: float) -> np.ndarray:
    """Return the multiplier of each pair's period; see `rotary` for the formula."""
    rotations = 8192 / (2 * np.pi * theta ** (np.arange(num_pairs) / num_pairs))
    smooth = np.clip((rotations - 1.0) / 3.0, 0.0, 1.0)
    return 1 / ((1 - smooth) / factor + smooth)
