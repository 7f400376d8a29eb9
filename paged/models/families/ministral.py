"""Ministral: Mistral with a sliding window in the layers that config.json says."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.load_decoder import load_decoder
from pagedrun.paged.models.forms.attention_form import AttentionForm
from pagedrun.paged.models.forms.decoder_form import DecoderForm
from pagedrun.paged.models.forms.ffns import gated_mlps
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.forms.windows import layer_windows, sliding_window
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec
from pagedrun.paged.models.rope_config import RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec[DecoderLayerSpec]:
    windows = layer_windows(config, sliding_window(config))
    attention = AttentionForm(
        Heads.from_json(config, num_kv_heads=8),
        windows,
        [RopeConfig.from_json(config, max_positions)] * len(windows),
    )
    form = DecoderForm(NormForm.from_json(config))
    return form.decoder(config, max_positions, attention, gated_mlps(config))


MINISTRAL = Family(_describe, load_decoder, 131_072, bos_token_id=1, eos_token_id=2)
