"""The architectures of llama.cpp that pagedrun reads."""

from collections.abc import Mapping

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.gguf.architecture import Architecture
from pagedrun.paged.models.gguf.gemma import GEMMA2, GEMMA3
from pagedrun.paged.models.gguf.lfm2 import LFM2
from pagedrun.paged.models.gguf.mixtures import MIXTRAL, QWEN3_MOE
from pagedrun.paged.models.gguf.phi3 import PHI3
from pagedrun.paged.models.rope_config import MAX_POSITIONS
from pagedrun.paged.values.json_value import JSONValue

_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _without_windows(own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
    """Refuse OLMo 3, which goes by the same name."""
    if own.integer("attention.sliding_window", 0, MAX_POSITIONS, 0):
        raise own.error("attention.sliding_window", "0; use the safetensors version of OLMo 3")
    return {}


# By `general.architecture`. The first holds Mistral too.
ARCHITECTURES = {
    "llama": Architecture("llama", turns_neighbours=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "granite": Architecture("granite", _GRANITE, turns_neighbours=True),
    "lfm2": LFM2,
    "olmo2": Architecture("olmo2", worked_out=_without_windows, layer_names=_NORMS_BEHIND),
    "phi3": PHI3,
    "smollm3": Architecture("smollm3", turns_neighbours=True),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Return a file's architecture; raises `ModelError` for one that is not read."""
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
