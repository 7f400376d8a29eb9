"""GLM-4: norms before and behind; interleaved rotation of the first half of heads."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, LayerNorms, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, attention, layer_windows
from pagedrun.paged.models.modules.mlp import FUSED_GATE_UP, gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    windows = layer_windows(config, None)
    heads = Heads.from_json(config, num_kv_heads=2, head_dim=128)
    rope = RopeConfig.from_json(config, max_positions, rotated=0.5)
    norm = NormForm.from_json(config, 1.5625e-7)
    bias = config.boolean("attention_bias", True)
    mixer = partial(
        attention,
        config,
        heads,
        norm,
        rope,
        windows,
        bias=bias,
        out_bias=False,
        interleaved_rotary=True,
    )
    norms = LayerNorms(attention_out="post_self_attn_layernorm", ffn_out="post_mlp_layernorm")
    ffn = gated_mlps(config, names=FUSED_GATE_UP)
    return decoder(config, max_positions, norm, mixer, ffn, norms=norms)


GLM4 = Family(_describe, 131_072, eos_token_id=(151_329, 151_336, 151_338))
