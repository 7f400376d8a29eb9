"""Qwen3.5 to 3.8, dense: Gated DeltaNets, and gated attention in every fourth layer."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.load_decoder import load_decoder
from pagedrun.paged.models.forms.delta_nets import delta_net_decoder, separate_inputs
from pagedrun.paged.models.forms.ffns import gated_mlps
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec[DecoderLayerSpec]:
    heads = Heads.from_json(config, num_kv_heads=4, head_dim=256)
    ffns = gated_mlps(config)
    return delta_net_decoder(config, max_positions, heads, ffns, separate_inputs)


QWEN3_5 = Family(_describe, load_decoder, 32_768)
