"""Hunyuan: Llama with norms of queries and keys after their rotation."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
    layer_windows,
)
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.moe import FfnOfLayer
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def hunyuan_decoder(config: JsonObject, max_positions: int, ffn: FfnOfLayer) -> DecoderSpec:
    """Return a decoder; `ffn` gives the feed-forward part of a layer by its index."""
    bias = config.boolean("attention_bias", False)
    heads, windows = Heads.from_json(config), layer_windows(config, None)
    rope = _rope(config, max_positions, heads.head_dim)
    norm = NormForm.from_json(config, 1e-5)
    qk_norm = QkNormForm("query_layernorm", "key_layernorm", after_rotation=True)
    mixer = partial(attention, config, heads, norm, rope, windows, bias=bias, qk_norm=qk_norm)
    return decoder(config, max_positions, norm, mixer, ffn)


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    return hunyuan_decoder(config, max_positions, gated_mlps(config))


def _rope(config: JsonObject, max_positions: int, head_dim: int) -> RopeConfig:
    """Return the rotation; the kind "dynamic" with `alpha` multiplies theta by a constant."""
    scaling = config.nested("rope_scaling") or config.nested("rope_parameters")
    kind = None if scaling is None else scaling.get("rope_type") or scaling.get("type")
    if scaling is None or kind != "dynamic" or not scaling.has("alpha"):
        return RopeConfig.from_json(config, max_positions)
    alpha = scaling.number("alpha", 1.0, 1e6)
    theta = scaling.number("rope_theta", 1.001, 1e15, config.number("rope_theta", 1.001, 1e15, 1e4))
    return RopeConfig(theta * alpha ** (head_dim / (head_dim - 2)))


HUNYUAN_V1_DENSE = Family(_describe, 2048, bos_token_id=1, eos_token_id=2)
