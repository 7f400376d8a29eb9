"""What GGUF files call the tensors of a decoder, and what pagedrun does."""

import re

from pagedrun.paged.models.gguf.architecture import Architecture

_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
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
_OF_LAYER = re.compile(r"blk\.(\d{1,5})\.([\w.]+)\.(weight|bias)", re.ASCII)
_OF_MODEL = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)
# The frequencies of Llama 3 and of longrope, which are in the description of the rotations.
ROPE_FREQUENCIES = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
OF_ROTATIONS = (ROPE_FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)


def our_name(theirs: str, architecture: Architecture) -> str:
    """Return what pagedrun calls a tensor; one that no decoder has keeps its name."""
    match = _OF_LAYER.fullmatch(theirs)
    if match is not None:
        name = {**_LAYER, **architecture.layer_names}.get(match[2])
        if name is None:
            return theirs
        # Tensors of all experts together are no linear layers.
        end = "" if ".experts." in name and match[3] == "weight" else f".{match[3]}"
        return f"model.layers.{int(match[1])}.{name}{end}"
    match = _OF_MODEL.fullmatch(theirs)
    if match is not None:
        name = {**_MODEL, **architecture.model_names}.get(match[1])
        return theirs if name is None else f"{name}.{match[2]}"
    return theirs
