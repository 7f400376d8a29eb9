"""LFM2 as llama.cpp writes it."""

from collections.abc import Mapping

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.models.gguf.architecture import Architecture
from pagedrun.paged.values.json_value import JSONValue

_MAX_LAYERS = 4096


def _worked_out(own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
    """Return kinds of layers: those that attend have heads of keys, the others none."""
    given = own.get("attention.head_count_kv")
    heads = [each for each in given if is_integer(each)] if isinstance(given, list) else []
    if not heads or heads != given or len(heads) > _MAX_LAYERS:
        raise own.error("attention.head_count_kv", "a list of integers, one for each layer")
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if each else "conv" for each in heads],
        "norm_eps": own.get("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,  # it is adjusted already
    }


LFM2 = Architecture(
    "lfm2",
    {"shortconv.l_cache": "conv_L_cache"},
    _worked_out,
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
    lost_axes={"conv.conv.weight": 1},
)
