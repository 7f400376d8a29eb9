"""ERNIE 4.5: Llama with heads of their own size and interleaved rotation."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import PLAIN_TENSORS, NamedTensors
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, attention, layer_windows
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.moe import FfnOfLayer
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def ernie_decoder(
    config: JsonObject,
    max_positions: int,
    heads: Heads,
    ffn: FfnOfLayer,
    tensors: NamedTensors = PLAIN_TENSORS,
) -> DecoderSpec:
    """Return a decoder; `ffn` gives the feed-forward part of a layer by its index."""
    bias = config.boolean("use_bias", False)
    windows = layer_windows(config, None)
    rope = RopeConfig.from_json(config, max_positions, theta=500_000.0)
    norm = NormForm.from_json(config, 1e-5)
    mixer = partial(
        attention, config, heads, norm, rope, windows, bias=bias, interleaved_rotary=True
    )
    return decoder(config, max_positions, norm, mixer, ffn, is_tied=True, tensors=tensors)


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads = Heads.from_json(config, num_kv_heads=2, head_dim=128)
    ffn = gated_mlps(config, has_bias=config.boolean("use_bias", False))
    return ernie_decoder(config, max_positions, heads, ffn)


ERNIE4_5 = Family(_describe, 131_072, bos_token_id=1, eos_token_id=2)
