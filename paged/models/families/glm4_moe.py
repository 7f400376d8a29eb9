"""GLM-4.5 and later: sigmoid mixtures behind dense layers; the first half of each head turns."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.load_decoder import load_decoder
from pagedrun.paged.models.forms.attention_form import AttentionForm, QkNormForm
from pagedrun.paged.models.forms.decoder_form import DecoderForm
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.forms.sigmoid_mixtures import sigmoid_mixtures
from pagedrun.paged.models.forms.windows import alike_windows
from pagedrun.paged.models.network.checkpoint.tensor_names import NamedTensors
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec
from pagedrun.paged.models.rope_config import RopeConfig
from pagedrun.paged.values.json_value import JSONValue

_MIXTURES: dict[str, JSONValue] = {
    "intermediate_size": 10_944,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec[DecoderLayerSpec]:
    windows = alike_windows(config, None)
    attention = AttentionForm(
        Heads.from_json(config, num_kv_heads=8),
        windows,
        [RopeConfig.from_json(config, max_positions, rotated=0.5)] * len(windows),
        qkv_bias=config.boolean("attention_bias", False),
        qk_norm=QkNormForm() if config.boolean("use_qk_norm", False) else None,
    )
    form = DecoderForm(NormForm.from_json(config, 1e-5), tensors=_tensors(config, len(windows)))
    ffn = sigmoid_mixtures(config, _MIXTURES, num_experts=128)
    return form.decoder(config, max_positions, attention, ffn)


def _tensors(config: JsonObject, num_layers: int) -> NamedTensors:
    """Drop the layers behind the last, which guess several tokens ahead."""
    num_guessing = config.integer("num_nextn_predict_layers", 0, 64, 1)
    guessing = range(num_layers, num_layers + num_guessing)
    return NamedTensors(dropped=tuple(f"model.layers.{layer}." for layer in guessing))


GLM4_MOE = Family(_describe, load_decoder, 131_072)
