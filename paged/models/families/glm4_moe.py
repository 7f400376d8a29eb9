"""GLM-4.5 and later: sigmoid MoE layers behind dense ones; the first half of a head is rotated."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import NamedTensors
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.layer_spec import MtpForm
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
)
from pagedrun.paged.models.modules.moe import sigmoid_moe
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.values.json_value import JSONValue

_MOE_DEFAULTS: dict[str, JSONValue] = {
    "intermediate_size": 10_944,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_MTP_NAMES = ("enorm", "hnorm", "eh_proj", "shared_head.norm")


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads = Heads.from_json(config, num_kv_heads=8)
    rope = RopeConfig.from_json(config, max_positions, rotated=0.5)
    norm = NormForm.from_json(config, 1e-5)
    bias = config.boolean("attention_bias", False)
    qk_norm = QkNormForm() if config.boolean("use_qk_norm", False) else None
    mixer = partial(
        attention, config, heads, norm, rope, None, bias=bias, out_bias=False, qk_norm=qk_norm
    )
    ffn = sigmoid_moe(config, _MOE_DEFAULTS, num_experts=128)
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    num_modules = config.integer("num_nextn_predict_layers", 0, 64, 1)
    modules = [f"model.layers.{num_layers + index}" for index in range(num_modules)]
    # Those behind the first are not read, nor are its copies of embedding and head.
    tensors = NamedTensors(dropped=tuple(f"{name}." for name in modules))
    mtp = MtpForm(modules[0], _MTP_NAMES) if modules else None
    return decoder(config, max_positions, norm, mixer, ffn, tensors=tensors, mtp=mtp)


GLM4_MOE = Family(_describe, 131_072)
