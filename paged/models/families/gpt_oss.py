"""gpt-oss: attention sinks, a window in every other layer, and MoE layers."""

from functools import partial

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    Heads,
    attention,
    periodic_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.mlp import check_activation
from pagedrun.paged.models.modules.moe import (
    ClippedSwiglu,
    FfnOfLayer,
    moe,
    read_num_experts,
)
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.quant.expert_layouts import Interleaved, Mxfp4
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.json_value import JSONValue

# Defaults of transformers.
_DEFAULTS: dict[str, JSONValue] = {
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
}
_YARN: dict[str, JSONValue] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = _without_mxfp4(config.with_defaults(_DEFAULTS))
    if not config.has("rope_scaling") and not config.has("rope_parameters"):
        config = JsonObject(config.origin, {**config.fields, "rope_parameters": _YARN})
    bias = config.boolean("attention_bias", True)
    windows = periodic_windows(config, sliding_window(config), 2)
    heads = Heads.from_json(config)
    rope = RopeConfig.from_json(config, max_positions, theta=150_000.0)
    norm = NormForm.from_json(config, 1e-5)
    mixer = partial(attention, config, heads, norm, rope, windows, bias=bias, has_sinks=True)
    return decoder(config, max_positions, norm, mixer, _ffns(config))


def _ffns(config: JsonObject) -> FfnOfLayer:
    check_activation(config, "silu")
    _require_dense(config)
    inner = config.integer("intermediate_size", 1, 2**22)
    num_experts = read_num_experts(config, 128)
    num_chosen = config.integer("num_experts_per_tok", 1, num_experts, 4)
    choice = ExpertChoice(num_chosen, Score.SOFTMAX_OF_CHOSEN)
    activation = ClippedSwiglu(
        limit=config.number("swiglu_limit", 1e-3, 1e6, 7.0),
        alpha=config.number("swiglu_alpha", 1e-3, 1e3, 1.702),
    )
    return lambda layer: moe(
        config,
        f"model.layers.{layer}.mlp",
        num_experts,
        inner,
        choice,
        activation=activation,
        layouts=(Interleaved(), Mxfp4()),
        router="router",
        has_bias=True,
    )


def _require_dense(config: JsonObject) -> None:
    """Raise `ModelError` for quantized linear layers."""
    if linear_method(config) != Dense():
        raise config.error(
            "quantization_config", "absent, or MXFP4: other experts must be unquantized"
        )


def _without_mxfp4(config: JsonObject) -> JsonObject:
    """Return config.json without a declaration of MXFP4, which the tensors of experts show."""
    quantization = config.nested("quantization_config")
    if quantization is None or quantization.get("quant_method") != "mxfp4":
        return config
    fields = {k: v for k, v in config.fields.items() if k != "quantization_config"}
    return JsonObject(config.origin, fields)


GPT_OSS = Family(_describe, 131_072)
