"""Gemma 4: larger heads without a window; layers that read earlier keys, inputs of each layer, and
mixtures of experts beside the dense part in some of its models."""

from collections.abc import Sequence
from dataclasses import replace

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, Role
from pagedrun.paged.models.decoder_spec import (
    DecoderForm,
    DecoderLayerSpec,
    DecoderSpec,
    with_layer_inputs,
)
from pagedrun.paged.models.families.family import Family, load_decoder
from pagedrun.paged.models.families.gemma2 import GEMMA_NORMS, optional_cap
from pagedrun.paged.models.modules.attention import (
    AttentionForm,
    Heads,
    QkNormForm,
    full_heads,
    periodic_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.mlp import Activation, FfnOfLayer, check_activation, gated_mlp
from pagedrun.paged.models.modules.moe import side_mixture
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import ropes_by_kind
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.json_value import JSONValue

_ACTIVATION: Activation = "gelu_tanh"
# What transformers assumes where config.json is silent.
_DEFAULTS: dict[str, JSONValue] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
}


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec[DecoderLayerSpec]:
    config = config.with_defaults(_DEFAULTS)
    # The last layer reads everything, whatever `layer_types` says of it.
    windows = (*periodic_windows(config, sliding_window(config), 6)[:-1], None)
    sources, norm = _sources(config, windows), NormForm.from_json(config)
    bias, heads = config.boolean("attention_bias", False), Heads.from_json(config)
    attention = AttentionForm(
        heads,
        windows,
        ropes_by_kind(config, windows, max_positions, full_theta=1e6, sliding_theta=1e4),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=QkNormForm(),
        scale=1.0,
        full_heads=full_heads(config, windows),
        full_keys_are_values=config.boolean("attention_k_eq_v", False),
        normalizes_values=True,
        sources=sources,
    )
    form = DecoderForm(
        norm,
        GEMMA_NORMS,
        is_tied=True,
        embedding_scale=config.integer("hidden_size", 1, 2**20) ** 0.5,
        logits_cap=optional_cap(config, "final_logit_softcapping"),
    )
    network = form.decoder(_causal(config), max_positions, attention, _ffns(config, sources))
    has_experts = config.boolean("enable_moe_block", False)

    def whole(index: int, layer: DecoderLayerSpec) -> DecoderLayerSpec:
        beside = side_mixture(config, index, norm, _ACTIVATION) if has_experts else None
        name = f"model.layers.{index}.layer_scalar"
        scale = Parameter(name, (1,), Role.SCALE, in_float32=True)
        return replace(layer, side_mixture=beside, scale=scale)

    layers = tuple(whole(index, layer) for index, layer in enumerate(network.layers))
    network = replace(network, layers=layers, ignored=network.ignored + _unread(sources))
    return with_layer_inputs(network, config, norm, _ACTIVATION)


def _sources(config: JsonObject, windows: Sequence[int | None]) -> list[int | None]:
    """Return the layer whose keys and values each layer reads, None for its own.

    The last `num_kv_shared_layers` read those of the last layer of their kind before them.
    """
    first = len(windows) - config.integer("num_kv_shared_layers", 0, len(windows) - 1, 0)
    last = {window: layer for layer, window in enumerate(windows[:first])}
    if not last.keys() >= set(windows[first:]):
        wanted = (
            "a number of layers that leaves a layer of each kind before those that read its keys"
        )
        raise config.error("num_kv_shared_layers", wanted)
    return [None] * first + [last[window] for window in windows[first:]]


def _unread(sources: Sequence[int | None]) -> tuple[str, ...]:
    """Return the ends of the names of tensors that layers have in the files on the hub, but which
    nothing reads, since they read the keys and values of others."""
    parts = ("k_proj", "v_proj", "k_norm", "v_norm")
    readers = [layer for layer, source in enumerate(sources) if source is not None]
    return tuple(f"layers.{layer}.self_attn.{part}.weight" for layer in readers for part in parts)


def _ffns(config: JsonObject, sources: Sequence[int | None]) -> FfnOfLayer:
    """Return dense parts, twice as wide in layers that read the keys of others, if config.json says
    so."""
    check_activation(config, _ACTIVATION)
    method, hidden = linear_method(config), config.integer("hidden_size", 1, 2**20)
    inner = config.integer("intermediate_size", 1, 2**22)
    factor = 2 if config.boolean("use_double_wide_mlp", False) else 1
    inners = [inner if source is None else factor * inner for source in sources]
    return lambda layer: gated_mlp(
        f"model.layers.{layer}.mlp", hidden, inners[layer], method, activation=_ACTIVATION
    )


def _causal(config: JsonObject) -> JsonObject:
    """Return config.json without what was read already; refuse attention to what comes later.

    Among tokens of text "vision" means causal attention.
    """
    if config.get("use_bidirectional_attention") not in (None, "vision"):
        raise config.error("use_bidirectional_attention", '"vision" or null: only causal attention')
    read = ("per_layer_config", "use_bidirectional_attention")
    return JsonObject(config.origin, {k: v for k, v in config.fields.items() if k not in read})


def _describe_unified(config: JsonObject, max_positions: int) -> DecoderSpec[DecoderLayerSpec]:
    """A model of this type has neither experts nor inputs of its layers."""
    without: dict[str, JSONValue] = {"hidden_size_per_layer_input": 0, "enable_moe_block": False}
    config = config.with_defaults({"sliding_window": 1024})
    return _describe(JsonObject(config.origin, {**config.fields, **without}), max_positions)


GEMMA4 = Family(_describe, load_decoder, 131_072, bos_token_id=2, eos_token_id=1)
GEMMA4_UNIFIED = Family(_describe_unified, load_decoder, 262_144, bos_token_id=2, eos_token_id=1)
