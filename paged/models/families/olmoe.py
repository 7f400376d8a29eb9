"""OLMoE: norms across all heads, and MoE in every layer."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
)
from pagedrun.paged.models.modules.mlp import check_activation
from pagedrun.paged.models.modules.moe import softmax_moe
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    check_activation(config, "silu")
    if config.has("clip_qkv"):
        raise config.error(
            "clip_qkv", "null: clipping of queries, keys and values is not supported"
        )
    bias = config.boolean("attention_bias", False)
    normalize = config.boolean("norm_topk_prob", False)
    heads = Heads.from_json(config)
    rope = RopeConfig.from_json(config, max_positions)
    norm = NormForm.from_json(config, 1e-5)
    qk_norm = QkNormForm(across_heads=True)
    mixer = partial(attention, config, heads, norm, rope, None, bias=bias, qk_norm=qk_norm)
    return decoder(
        config,
        max_positions,
        norm,
        mixer,
        lambda layer: softmax_moe(
            config,
            f"model.layers.{layer}.mlp",
            num_experts=64,
            num_chosen=8,
            inner=2048,
            inner_name="intermediate_size",
            normalize=normalize,
        ),
    )


OLMOE = Family(_describe, 4096, eos_token_id=50_279)
