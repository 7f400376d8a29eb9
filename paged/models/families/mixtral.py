"""Mixtral: MoE in every layer; a sliding window in every layer, or in none."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import Heads, sliding_window, uniform_windows
from pagedrun.paged.models.modules.moe import softmax_moe
from pagedrun.paged.models.quant.expert_layouts import PerExpert

_PROJECTIONS = PerExpert(gate="w1", up="w3", down="w2")


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    # Defaults of transformers for this family alone.
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": 1e6}
    config = config.with_defaults(defaults)
    window = sliding_window(config) if config.has("sliding_window") else None
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config, num_kv_heads=8),
        uniform_windows(config, window),
        lambda layer: softmax_moe(
            config,
            f"model.layers.{layer}.block_sparse_moe",
            num_experts=8,
            num_chosen=2,
            inner=14_336,
            inner_name="intermediate_size",
            normalize=True,
            projections=_PROJECTIONS,
        ),
    )


MIXTRAL = Family(_describe, 131_072, bos_token_id=1, eos_token_id=2)
