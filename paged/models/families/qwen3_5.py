"""Qwen3.5 to 3.8, dense: Gated DeltaNets, and gated attention in every fourth layer."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.recurrence import delta_net_decoder, split_projections


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads = Heads.from_json(config, num_kv_heads=4, head_dim=256)
    ffns = gated_mlps(config)
    return delta_net_decoder(config, max_positions, heads, ffns, split_projections)


QWEN3_5 = Family(_describe, 32_768)
