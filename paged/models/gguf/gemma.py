"""Gemma 2 and 3 as llama.cpp writes them."""

from collections.abc import Mapping
from dataclasses import dataclass

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.gguf.architecture import Architecture
from pagedrun.paged.models.gguf.head_dim import head_dim
from pagedrun.paged.values.json_value import JSONValue

_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_FIELDS = {
    "attention.sliding_window": "sliding_window",
    "rope.freq_base_swa": "rope_local_base_freq",
}


@dataclass(frozen=True, slots=True)
class _WorkedOut:
    """Of the models of a generation, that with `large_layers` has scores of another scale."""

    large_layers: int

    def __call__(self, own: JsonObject, file: GgufFile) -> Mapping[str, JSONValue]:
        size = head_dim(own)
        if own.get("block_count") == self.large_layers:
            width = own.integer("embedding_length", 1, 2**20)
            size = width // own.integer("attention.head_count", 1, 2**14)
        fields: dict[str, JSONValue] = {
            "query_pre_attn_scalar": size,
            # Null where the metadata has none, in place of what transformers assumes.
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


GEMMA2 = Architecture("gemma2", _FIELDS, _WorkedOut(46), layer_names=_NAMES, adds_one=True)
GEMMA3 = Architecture("gemma3_text", _FIELDS, _WorkedOut(62), layer_names=_NAMES, adds_one=True)
