"""OLMo 3: OLMo 2 with a sliding window in three of four layers."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.load_decoder import load_decoder
from pagedrun.paged.models.families.olmo2 import OLMO_NORMS
from pagedrun.paged.models.forms.attention_form import AttentionForm, QkNormForm
from pagedrun.paged.models.forms.decoder_form import DecoderForm
from pagedrun.paged.models.forms.ffns import gated_mlps
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.forms.ropes import ropes_by_kind
from pagedrun.paged.models.forms.windows import periodic_windows, sliding_window
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec[DecoderLayerSpec]:
    bias = config.boolean("attention_bias", False)
    windows = periodic_windows(config, sliding_window(config), 4)
    attention = AttentionForm(
        Heads.from_json(config),
        windows,
        ropes_by_kind(
            config, windows, max_positions, full_theta=500_000.0, sliding_theta=500_000.0
        ),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=QkNormForm(of_all_heads=True),
    )
    form = DecoderForm(NormForm.from_json(config, 1e-5), OLMO_NORMS)
    return form.decoder(config, max_positions, attention, gated_mlps(config))


OLMO3 = Family(_describe, load_decoder, 2048, eos_token_id=50_279)
