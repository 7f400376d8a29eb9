"""Seed-OSS: Llama with heads of their own size and biases of queries, keys and values."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads, attention, layer_windows
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    windows = layer_windows(config, None)
    heads = Heads.from_json(config, num_kv_heads=8, head_dim=128)
    rope = RopeConfig.from_json(config, max_positions)
    norm = NormForm.from_json(config)
    bias = config.boolean("attention_bias", True)
    out_bias = config.boolean("attention_out_bias", False)

    def mixer(layer: int) -> AttentionSpec:
        return attention(
            config, layer, heads, norm, rope, windows[layer], bias=bias, out_bias=out_bias
        )

    ffn = gated_mlps(config, has_bias=config.boolean("mlp_bias", False))
    return decoder(config, max_positions, norm, mixer, ffn)


SEED_OSS = Family(_describe, 524_288, bos_token_id=0, eos_token_id=2)
