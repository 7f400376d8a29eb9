"""Model architectures of llama.cpp: names of tensors and of metadata fields in GGUF files.

One `Architecture` for each `general.architecture` that pagedrun reads has the difference to a
plain decoder: the fields of config.json that follow from the metadata, and the names of
tensors.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pagedrun.paged.files.gguf import GgufFile, GgufTensor
from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.models.modules.rotary import MAX_POSITIONS
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue


@dataclass(frozen=True, slots=True)
class Architecture:
    """Differences of an architecture from a plain decoder: metadata, names and tensors.

    `model_type` is that of config.json. `fields` maps metadata fields to further fields of
    config.json; `extra_fields` computes more of them from the metadata, without the prefix of the
    architecture, and the file.

    `model_names` and `layer_names` map GGUF names of tensors to pagedrun's. `interleaved_rotary`:
    query and key rows are ordered for a rotation of neighboring elements. `norm_weight_plus_one`:
    norm weights are stored plus 1. `squeezed_axes`: position of a removed axis of length 1, by the
    end of pagedrun's name. `partial_rotary`: the rotation may cover a part of each head.
    """

    model_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    extra_fields: Callable[[JsonObject, GgufFile], Mapping[str, JSONValue]] = lambda own, file: {}
    model_names: Mapping[str, str] = field(default_factory=dict)
    layer_names: Mapping[str, str] = field(default_factory=dict)
    interleaved_rotary: bool = False
    norm_weight_plus_one: bool = False
    squeezed_axes: Mapping[str, int] = field(default_factory=dict)
    partial_rotary: bool = False


def _expert_names(block: str) -> dict[str, str]:
    experts = {f"ffn_{each}_exps": f"{block}.experts.{each}_proj" for each in _PROJECTIONS}
    return {"ffn_gate_inp": f"{block}.gate", **experts}


_PROJECTIONS = ("gate", "up", "down")
_EXPERT_COUNTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
QWEN3_MOE = Architecture(
    "qwen3_moe",
    {**_EXPERT_COUNTS, "expert_feed_forward_length": "moe_intermediate_size"},
    # llama.cpp always normalizes, so its files have no such field.
    lambda own, file: {"norm_topk_prob": True},
    layer_names=_expert_names("mlp"),
)
# A llama with experts in llama.cpp.
MIXTRAL = Architecture(
    "mixtral",
    _EXPERT_COUNTS,
    layer_names=_expert_names("block_sparse_moe"),
    interleaved_rotary=True,
)

_GEMMA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_FIELDS = {
    "attention.sliding_window": "sliding_window",
    "rope.freq_base_swa": "rope_local_base_freq",
}


@dataclass(frozen=True, slots=True)
class _GemmaFields:
    """Fields of a Gemma generation; its model with `large_layers` layers scales scores by width."""

    large_layers: int

    def __call__(self, own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
        size = head_dim(own)
        if own.get("block_count") == self.large_layers:
            width = own.integer("embedding_length", 1, 2**20)
            size = width // own.integer("attention.head_count", 1, 2**14)
        fields: dict[str, JSONValue] = {
            "query_pre_attn_scalar": size,
            # Null if the metadata has none, instead of the default of transformers.
            "attn_logit_softcapping": own.get("attn_logit_softcapping"),
            "final_logit_softcapping": own.get("final_logit_softcapping"),
        }
        pattern = own.get("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            kinds = ("full_attention", "sliding_attention")
            fields["layer_types"] = [kinds[bool(each)] for each in pattern]
        elif pattern is not None:
            fields["sliding_window_pattern"] = pattern
        return fields


GEMMA2 = Architecture(
    "gemma2", _GEMMA_FIELDS, _GemmaFields(46), layer_names=_GEMMA_NAMES, norm_weight_plus_one=True
)
GEMMA3 = Architecture(
    "gemma3_text",
    _GEMMA_FIELDS,
    _GemmaFields(62),
    layer_names=_GEMMA_NAMES,
    norm_weight_plus_one=True,
)

_MAX_LAYERS = 4096


def _lfm2_fields(own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
    """Return the layer types: attention layers have key heads, convolutions none."""
    given = own.get("attention.head_count_kv")
    heads = [each for each in given if is_integer(each)] if isinstance(given, list) else []
    if not heads or heads != given or len(heads) > _MAX_LAYERS:
        raise own.error("attention.head_count_kv", "a list of integers, one for each layer")
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if each else "conv" for each in heads],
        "norm_eps": own.get("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,  # the stored size is final
    }


LFM2 = Architecture(
    "lfm2",
    {"shortconv.l_cache": "conv_L_cache"},
    _lfm2_fields,
    model_names={"token_embd_norm": "model.embedding_norm"},
    layer_names={
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
    },
    squeezed_axes={"conv.conv.weight": 1},
)


def _phi3_fields(own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
    size = head_dim(own)
    fields: dict[str, JSONValue] = {
        "partial_rotary_factor": own.integer("rope.dimension_count", 1, size, size) / size,
        "sliding_window": own.get("attention.sliding_window") or None,  # 0: there is none
    }
    if SHORT_FACTORS in file.tensors:
        fields["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": _rope_factors(file, SHORT_FACTORS, size),
            "long_factor": _rope_factors(file, LONG_FACTORS, size),
        }
        original = own.get("rope.scaling.original_context_length")
        fields["original_max_position_embeddings"] = original
    return fields


def _rope_factors(file: GgufFile, name: str, size: int) -> list[JSONValue]:
    """Return the factors of the periods, at most one for each pair of elements of a head."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or len(file.bytes_of(name)) > 2 * size:
        raise ModelError(f"{file.path}: {name} is not stored as F32 with one number for each pair")
    return [float(each) for each in file.bytes_of(name).view(np.float32)]


LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


def head_dim(own: JsonObject) -> int:
    """Return the size of a key head; own: fields without the prefix of the architecture."""
    heads = own.integer("attention.head_count", 1, 2**14)
    width = own.integer("embedding_length", 1, 2**20)
    return own.integer("attention.key_length", 1, 2**12, max(width // heads, 1))


PHI3 = Architecture(
    "phi3",
    extra_fields=_phi3_fields,
    layer_names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    partial_rotary=True,
)

_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _refuse_olmo3(own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
    """Refuse OLMo 3, whose files have the same architecture name."""
    if own.integer("attention.sliding_window", 0, MAX_POSITIONS, 0):
        raise own.error("attention.sliding_window", "0; use the safetensors version of OLMo 3")
    return {}


# By `general.architecture`. The first holds Mistral too.
ARCHITECTURES = {
    "llama": Architecture("llama", interleaved_rotary=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "granite": Architecture("granite", _GRANITE, interleaved_rotary=True),
    "lfm2": LFM2,
    "olmo2": Architecture("olmo2", extra_fields=_refuse_olmo3, layer_names=_POST_NORMS),
    "phi3": PHI3,
    "smollm3": Architecture("smollm3", interleaved_rotary=True),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file; raises `ModelError` for an unsupported one."""
    every = JsonObject(str(file.path), file.metadata)
    name = every.text("general.architecture")
    if name not in ARCHITECTURES:
        raise every.error(
            "general.architecture",
            f"one of {', '.join(ARCHITECTURES)}, which pagedrun reads from GGUF; use the "
            "safetensors version of the model",
        )
    if name == "llama" and every.has("llama.expert_count"):
        return MIXTRAL if every.integer("llama.expert_count", 0, 2**16) else ARCHITECTURES[name]
    return ARCHITECTURES[name]


_MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d{1,5})\.([\w.]+)\.(weight|bias)", re.ASCII)
_MODEL_TENSOR = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)
# Frequencies of Llama 3 and longrope; config.json has their parameters instead.
ROPE_FREQUENCIES = "rope_freqs.weight"
ROPE_TENSORS = (ROPE_FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)


def named_tensors(file: GgufFile) -> dict[str, tuple[str, GgufTensor]]:
    """Return name and shape of each tensor in the file, by pagedrun's name.

    Squeezed axes are restored; RoPE tensors are left out, as config.json describes them. Raises
    `ModelError` if two tensors have the same name.
    """
    architecture = architecture_of(file)
    found: dict[str, tuple[str, GgufTensor]] = {}
    for theirs, tensor in file.tensors.items():
        name = pagedrun_name(theirs, architecture)
        if name in found:
            raise ModelError(f"{file.path}: {theirs} occurs twice; download the model again")
        if theirs not in ROPE_TENSORS:
            found[name] = theirs, replace(tensor, shape=_shape(name, tensor.shape, architecture))
    return found


def _shape(name: str, shape: tuple[int, ...], architecture: Architecture) -> tuple[int, ...]:
    for end, axis in architecture.squeezed_axes.items():
        if name.endswith(end) and len(shape) > axis:
            return (*shape[:axis], 1, *shape[axis:])
    return shape


def pagedrun_name(theirs: str, architecture: Architecture) -> str:
    """Return pagedrun's name of a tensor; tensors that no decoder has keep their own."""
    match = _LAYER_TENSOR.fullmatch(theirs)
    if match is not None:
        name = {**_LAYER_NAMES, **architecture.layer_names}.get(match[2])
        if name is None:
            return theirs
        # Stacked tensors of experts have no ".weight".
        end = "" if ".experts." in name and match[3] == "weight" else f".{match[3]}"
        return f"model.layers.{int(match[1])}.{name}{end}"
    match = _MODEL_TENSOR.fullmatch(theirs)
    if match is not None:
        name = {**_MODEL_NAMES, **architecture.model_names}.get(match[1])
        return theirs if name is None else f"{name}.{match[2]}"
    return theirs
