"""OLMo 3: OLMo 2 with a sliding window in three of four layers."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.olmo2 import OLMO_NORMS
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
    periodic_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import ropes_by_kind


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    bias = config.boolean("attention_bias", False)
    windows = periodic_windows(config, sliding_window(config), 4)
    heads = Heads.from_json(config)
    ropes = ropes_by_kind(
        config, windows, max_positions, full_theta=500_000.0, sliding_theta=500_000.0
    )
    norm = NormForm.from_json(config, 1e-5)
    qk_norm = QkNormForm(across_heads=True)
    mixer = partial(attention, config, heads, norm, ropes, windows, bias=bias, qk_norm=qk_norm)
    return decoder(config, max_positions, norm, mixer, gated_mlps(config), norms=OLMO_NORMS)


OLMO3 = Family(_describe, 2048, eos_token_id=50_279)
