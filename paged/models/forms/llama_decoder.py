"""Decoders of Llama's kind: what their config.json files and checkpoints have in common."""

from collections.abc import Sequence

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.attention_form import AttentionForm, QkNormForm
from pagedrun.paged.models.forms.decoder_form import DecoderForm
from pagedrun.paged.models.forms.ffns import FfnOfLayer, check_activation
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec
from pagedrun.paged.models.rope_config import RopeConfig


def llama_decoder(
    config: JsonObject,
    max_positions: int,
    heads: Heads,
    windows: Sequence[int | None],
    ffn: FfnOfLayer,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
) -> DecoderSpec[DecoderLayerSpec]:
    """Return a decoder with a layer for each of `windows`, under the names of Llama's tensors.

    `ffn` gives the feed-forward part of a layer by its index. The biases say which projections of
    attention have one, `qk_norm` whether each head's query and key pass an RMSNorm before rotation.
    Raises `ModelError` for what such a decoder does not have.
    """
    check_activation(config, "silu")
    attention = AttentionForm(
        heads,
        windows,
        [RopeConfig.from_json(config, max_positions)] * len(windows),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=QkNormForm() if qk_norm else None,
    )
    form = DecoderForm(NormForm.from_json(config))
    return form.decoder(config, max_positions, attention, ffn)
