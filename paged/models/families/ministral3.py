"""Ministral 3: Mistral with queries scaled by position."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, attention, sliding_window
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import MAX_POSITIONS, QueryScaling, RopeConfig
from pagedrun.paged.values.json_value import JSONValue

# Default rotation of transformers.
_ROPE: dict[str, JSONValue] = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    if not (config.has("rope_parameters") or config.has("rope_scaling")):
        config = config.with_defaults({"rope_parameters": _ROPE})
    scaling = config.nested("rope_scaling") or config.section("rope_parameters")
    query_scaling = None
    if scaling.has("llama_4_scaling_beta"):
        original = scaling.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
        query_scaling = QueryScaling(scaling.number("llama_4_scaling_beta", 0.0, 1e3), original)
    window = sliding_window(config) if config.has("sliding_window") else None
    windows = [window] * config.integer("num_hidden_layers", 1, 4096)
    heads = Heads.from_json(config, num_kv_heads=8, head_dim=128)
    rope = RopeConfig.from_json(config, max_positions)
    norm = NormForm.from_json(config, 1e-5)
    mixer = partial(attention, config, heads, norm, rope, windows, query_scaling=query_scaling)
    return decoder(config, max_positions, norm, mixer, gated_mlps(config))


MINISTRAL3 = Family(_describe, 262_144, bos_token_id=1, eos_token_id=2)
