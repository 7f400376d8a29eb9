"""Phi-3 and Phi-4 as llama.cpp writes them."""

from collections.abc import Mapping

import numpy as np

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.gguf.architecture import Architecture
from pagedrun.paged.models.gguf.head_dim import head_dim
from pagedrun.paged.models.gguf.tensor_names import LONG_FACTORS, SHORT_FACTORS
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue


def _worked_out(own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
    size = head_dim(own)
    fields: dict[str, JSONValue] = {
        "partial_rotary_factor": own.integer("rope.dimension_count", 1, size, size) / size,
        "sliding_window": own.get("attention.sliding_window") or None,  # 0: there is none
    }
    if SHORT_FACTORS in file.tensors:
        fields["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": _factors(file, SHORT_FACTORS, size),
            "long_factor": _factors(file, LONG_FACTORS, size),
        }
        original = own.get("rope.scaling.original_context_length")
        fields["original_max_position_embeddings"] = original
    return fields


def _factors(file: GgufFile, name: str, size: int) -> list[JSONValue]:
    """Return what periods are multiplied by, at most one for each pair of a head's elements."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or len(file.bytes_of(name)) > 2 * size:
        raise ModelError(f"{file.path}: {name} is not stored as F32 with one number for each pair")
    return [float(each) for each in file.bytes_of(name).view(np.float32)]


PHI3 = Architecture(
    "phi3",
    worked_out=_worked_out,
    layer_names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    rotates_in_part=True,
)
