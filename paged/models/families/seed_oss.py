"""Seed-OSS: Llama with heads of their own size and biases of queries, keys and values."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, layer_windows
from pagedrun.paged.models.modules.mlp import gated_mlps


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config, num_kv_heads=8, head_dim=128),
        layer_windows(config, None),
        gated_mlps(config, has_bias=config.boolean("mlp_bias", False)),
        bias=config.boolean("attention_bias", True),
        out_bias=config.boolean("attention_out_bias", False),
    )


SEED_OSS = Family(_describe, 524_288, bos_token_id=0, eos_token_id=2)
