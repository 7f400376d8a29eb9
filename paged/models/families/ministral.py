"""Ministral: Mistral with a sliding window in the layers that config.json says."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderForm, DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    AttentionForm,
    Heads,
    layer_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    windows = layer_windows(config, sliding_window(config))
    attention = AttentionForm(
        Heads.from_json(config, num_kv_heads=8),
        windows,
        [RopeConfig.from_json(config, max_positions)] * len(windows),
    )
    form = DecoderForm(NormForm.from_json(config))
    return form.decoder(config, max_positions, attention, gated_mlps(config))


MINISTRAL = Family(_describe, 131_072, bos_token_id=1, eos_token_id=2)
