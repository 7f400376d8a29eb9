"""Gemma 4: larger heads without a window, layers that read earlier keys, per-layer inputs.

Some of its models have an MoE layer beside the dense part.
"""

from collections.abc import Sequence
from dataclasses import replace

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, Role
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.gemma2 import GEMMA_NORMS, optional_cap
from pagedrun.paged.models.modules.attention import (
    AttentionSpec,
    Heads,
    QkNormForm,
    attention,
    periodic_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.embedding import EmbeddingSpec, InputGateSpec, LayerInputsSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import Activation, check_activation, gated_mlp
from pagedrun.paged.models.modules.moe import FfnOfLayer, ParallelMoeSpec, moe
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import ropes_by_kind
from pagedrun.paged.models.quant.expert_layouts import PerExpert, Stacked
from pagedrun.paged.models.quant.registry import linear_method
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

_ACTIVATION: Activation = "gelu_tanh"
# Defaults of transformers.
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


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = config.with_defaults(_DEFAULTS)
    # The last layer has full attention, whatever its entry in `layer_types`.
    windows = (*periodic_windows(config, sliding_window(config), 6)[:-1], None)
    sources, norm = _sources(config, windows), NormForm.from_json(config)
    bias, heads = config.boolean("attention_bias", False), Heads.from_json(config)
    ropes = ropes_by_kind(config, windows, max_positions, full_theta=1e6, sliding_theta=1e4)

    full_heads = _full_heads(config, windows)
    keys_are_values = config.boolean("attention_k_eq_v", False)
    qk_norm = QkNormForm()

    def mixer(layer: int) -> AttentionSpec:
        is_full = windows[layer] is None
        return attention(
            config,
            full_heads if is_full else heads,
            norm,
            ropes,
            windows,
            layer,
            bias=bias,
            qk_norm=qk_norm,
            scale=1.0,
            keys_are_values=is_full and keys_are_values,
            normalizes_values=True,
            source=sources[layer],
        )

    has_experts = config.boolean("enable_moe_block", False)
    size = config.integer("hidden_size_per_layer_input", 0, 2**16)

    def finish(index: int, layer: DecoderLayerSpec) -> DecoderLayerSpec:
        name = f"model.layers.{index}"
        return replace(
            layer,
            parallel_moe=_parallel_moe(config, name, norm) if has_experts else None,
            input_gate=_input_gate(config, name, size, norm) if size else None,
            scale=_scale(f"{name}.layer_scalar", 1),
        )

    network = decoder(
        _causal(config),
        max_positions,
        norm,
        mixer,
        _ffns(config, sources),
        finish=finish,
        norms=GEMMA_NORMS,
        is_tied=True,
        embedding_scale=config.integer("hidden_size", 1, 2**20) ** 0.5,
        logits_cap=optional_cap(config, "final_logit_softcapping"),
    )
    return replace(
        network,
        ignored=network.ignored + _unread(sources),
        layer_inputs=_layer_inputs(config, len(windows), size, norm) if size else None,
    )


def _scale(name: str, size: int) -> Parameter:
    return Parameter(name, (size,), Role.SCALE, in_float32=True)


def _linear(config: JsonObject, name: str, in_features: int, out_features: int) -> LinearSpec:
    parts = (Projection(name, out_features),)
    return LinearSpec(parts, in_features, has_bias=False, method=linear_method(config))


def _parallel_moe(config: JsonObject, name: str, norm: NormForm) -> ParallelMoeSpec:
    """Return the MoE layer beside the dense part of a layer."""
    hidden = config.integer("hidden_size", 1, 2**20)
    num_experts = config.integer("num_experts", 1, 2**14)
    inner = config.integer("moe_intermediate_size", 1, 2**22)
    num_chosen = config.integer("top_k_experts", 1, num_experts)
    return ParallelMoeSpec(
        moe(
            config,
            name,
            num_experts,
            inner,
            ExpertChoice(num_chosen, Score.SOFTMAX, normalize=True),
            activation=_ACTIVATION,
            layouts=(Stacked(), PerExpert()),
            router="router.proj",
        ),
        router_scale=_scale(f"{name}.router.scale", hidden),
        router_factor=hidden**-0.5,
        expert_scales=_scale(f"{name}.router.per_expert_scale", num_experts),
        norm=norm.named(f"{name}.pre_feedforward_layernorm_2", hidden),
        out_norm=norm.named(f"{name}.post_feedforward_layernorm_2", hidden),
        dense_norm=norm.named(f"{name}.post_feedforward_layernorm_1", hidden),
    )


def _input_gate(config: JsonObject, name: str, size: int, norm: NormForm) -> InputGateSpec:
    hidden = config.integer("hidden_size", 1, 2**20)
    return InputGateSpec(
        _ACTIVATION,
        gate=_linear(config, f"{name}.per_layer_input_gate", hidden, size),
        out=_linear(config, f"{name}.per_layer_projection", size, hidden),
        out_norm=norm.named(f"{name}.post_per_layer_input_norm", hidden),
    )


def _layer_inputs(
    config: JsonObject, num_layers: int, size: int, norm: NormForm
) -> LayerInputsSpec:
    """Return the per-layer embeddings; `ModelError` for a table smaller than the vocabulary."""
    hidden, width = config.integer("hidden_size", 1, 2**20), num_layers * size
    vocab_size = config.integer("vocab_size", 1, 2**24)
    num_tokens = config.integer("vocab_size_per_layer_input", vocab_size, 2**24)
    return LayerInputsSpec(
        num_layers,
        size,
        EmbeddingSpec("model.embed_tokens_per_layer", num_tokens, width, size**0.5),
        projection=_linear(config, "model.per_layer_model_projection", hidden, width),
        projection_scale=hidden**-0.5,
        norm=norm.named("model.per_layer_projection_norm", size),
    )


_GLOBAL_HEAD_DIM = 512
_PER_LAYER_FIELDS = {"head_dim", "num_key_value_heads"}


def _full_heads(config: JsonObject, windows: Sequence[int | None]) -> Heads:
    """Return the heads of layers without a window.

    transformers 5 saves them in `per_layer_config`; files on the hub have `global_head_dim` and, if
    keys are values, `num_global_key_value_heads`. Raises `ModelError` for layers of one kind that
    differ.
    """
    given: dict[str, JSONValue]
    if config.has("per_layer_config"):
        given = _full_layer_fields(config, windows)
    else:
        given = {"head_dim": config.integer("global_head_dim", 1, 2**12, _GLOBAL_HEAD_DIM)}
        fewer = "num_global_key_value_heads"
        if config.boolean("attention_k_eq_v", False) and config.has(fewer):
            given["num_key_value_heads"] = config.integer(fewer, 1, 2**14)
    return Heads.from_json(JsonObject(config.origin, {**config.fields, **given}))


def _full_layer_fields(config: JsonObject, windows: Sequence[int | None]) -> dict[str, JSONValue]:
    given = config.section("per_layer_config").fields
    full = [str(layer) for layer, window in enumerate(windows) if window is None]
    heads = given.get(full[0])
    alike = sorted(given) == sorted(full) and all(given[layer] == heads for layer in full)
    if not alike or not isinstance(heads, dict) or heads.keys() - _PER_LAYER_FIELDS:
        raise ModelError(
            f"{config.origin}: per_layer_config gives layers different shapes, which "
            "pagedrun does not support, except head_dim and num_key_value_heads of all "
            "layers with full attention"
        )
    return heads


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
    """Return the ends of the names of unused tensors in files on the hub.

    They belong to layers that read the keys and values of others.
    """
    parts = ("k_proj", "v_proj", "k_norm", "v_norm")
    readers = [layer for layer, source in enumerate(sources) if source is not None]
    return tuple(f"layers.{layer}.self_attn.{part}.weight" for layer in readers for part in parts)


def _ffns(config: JsonObject, sources: Sequence[int | None]) -> FfnOfLayer:
    """Return dense parts; `use_double_wide_mlp` doubles those of layers that read others' keys."""
    check_activation(config, _ACTIVATION)
    inner = config.integer("intermediate_size", 1, 2**22)
    factor = 2 if config.boolean("use_double_wide_mlp", False) else 1
    inners = [inner if source is None else factor * inner for source in sources]
    return lambda layer: gated_mlp(
        config, f"model.layers.{layer}.mlp", inners[layer], activation=_ACTIVATION
    )


def _causal(config: JsonObject) -> JsonObject:
    """Return config.json without the fields that `decoder` refuses.

    Bidirectional attention "vision" is causal among tokens of text. Raises `ModelError` for others.
    """
    if config.get("use_bidirectional_attention") not in (None, "vision"):
        raise config.error("use_bidirectional_attention", '"vision" or null: only causal attention')
    read = ("per_layer_config", "use_bidirectional_attention")
    return JsonObject(config.origin, {k: v for k, v in config.fields.items() if k not in read})


def _describe_unified(config: JsonObject, max_positions: int) -> DecoderSpec:
    """Return a model without experts and per-layer inputs."""
    without: dict[str, JSONValue] = {"hidden_size_per_layer_input": 0, "enable_moe_block": False}
    config = config.with_defaults({"sliding_window": 1024})
    return _describe(JsonObject(config.origin, {**config.fields, **without}), max_positions)


GEMMA4 = Family(_describe, 131_072, bos_token_id=2, eos_token_id=1)
GEMMA4_UNIFIED = Family(_describe_unified, 262_144, bos_token_id=2, eos_token_id=1)
