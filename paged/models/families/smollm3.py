"""SmolLM3: Llama with no rotation in every fourth layer."""

from functools import partial

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.modules.attention import (
    Heads,
    attention,
    layer_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.mlp import gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    bias = config.boolean("attention_bias", False)
    windows = layer_windows(config, _window(config))
    rope = RopeConfig.from_json(config, max_positions, theta=2_000_000.0)
    heads = Heads.from_json(config, num_kv_heads=4)
    ropes = [rope if has_rope else None for has_rope in _has_rope(config, len(windows))]
    norm = NormForm.from_json(config)
    mixer = partial(attention, config, heads, norm, ropes, windows, bias=bias)
    ffn = gated_mlps(config, has_bias=config.boolean("mlp_bias", False))
    return decoder(config, max_positions, norm, mixer, ffn, is_tied=True)


def _window(config: JsonObject) -> int | None:
    if not config.boolean("use_sliding_window", False) or not config.has("sliding_window"):
        return None
    if config.get("layer_types") is None:
        raise config.error("layer_types", "a list if some layers have a sliding window")
    return sliding_window(config)


def _has_rope(config: JsonObject, num_layers: int) -> list[bool]:
    """Read `no_rope_layers`, in which 1 means that a layer has rotations."""
    given = config.get("no_rope_layers")
    if given is None:
        period = config.integer("no_rope_layer_interval", 1, 4096, 4)
        return [layer % period != 0 for layer in range(1, num_layers + 1)]
    flags = given if isinstance(given, list) else []
    if len(flags) < num_layers or any(flag not in (0, 1) for flag in flags):
        raise config.error("no_rope_layers", f"a list of 0 or 1 for each of {num_layers} layers")
    return [flag == 1 for flag in flags[:num_layers]]


SMOLLM3 = Family(_describe, 32_768, bos_token_id=128_000, eos_token_id=128_001)
