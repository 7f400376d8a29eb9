"""Qwen3: heads of their own size, normalized before rotation; windows as in Qwen2."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, upper_windows
from pagedrun.paged.models.modules.mlp import gated_mlps


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    attention_bias = config.boolean("attention_bias", False)
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config, num_kv_heads=32, head_dim=128),
        upper_windows(config),
        gated_mlps(config),
        bias=attention_bias,
        qk_norm=True,
    )


QWEN3 = Family(_describe, 32_768)
