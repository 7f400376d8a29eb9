"""What GGUF files call the tensors of a decoder, and what pagedrun does."""

import re

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
_OF_LAYER = re.compile(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)", re.ASCII)
_OF_MODEL = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)
# The frequencies of Llama 3, which are in the description of the rotations.
ROPE_FREQUENCIES = "rope_freqs.weight"


def our_name(theirs: str) -> str:
    """Return what pagedrun calls a tensor; one that no decoder has keeps its name."""
    match = _OF_LAYER.fullmatch(theirs)
    if match is not None and match[2] in _LAYER:
        return f"model.layers.{int(match[1])}.{_LAYER[match[2]]}.{match[3]}"
    match = _OF_MODEL.fullmatch(theirs)
    if match is not None and match[1] in _MODEL:
        return f"{_MODEL[match[1]]}.{match[2]}"
    return theirs
