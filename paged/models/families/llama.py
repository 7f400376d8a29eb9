"""Llama: full attention; biases where config.json asks for them."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, layer_windows
from pagedrun.paged.models.modules.mlp import gated_mlps


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    attention_bias = config.boolean("attention_bias", False)
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config),
        layer_windows(config, None),
        gated_mlps(config, has_bias=config.boolean("mlp_bias", False)),
        bias=attention_bias,
    )


LLAMA = Family(_describe, 2048, bos_token_id=1, eos_token_id=2)
