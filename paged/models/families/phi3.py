"""Phi-3 and Phi-4: fused projections; longrope up to the context before stretching."""

from dataclasses import replace
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
from pagedrun.paged.models.modules.mlp import FUSED_GATE_UP, gated_mlps
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import MAX_FACTOR, MAX_POSITIONS, RopeConfig


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads, windows = Heads.from_json(config), layer_windows(config, _window(config))
    rope = _rope(config, max_positions, heads.head_dim)
    if rope.kind == "longrope":
        # Beyond it other factors hold, for the keys that are in the cache too.
        max_positions = min(max_positions, rope.original_max_positions or max_positions)
    norm = NormForm.from_json(config, 1e-5)
    mixer = partial(attention, config, heads, norm, rope, windows, is_fused=True)
    return decoder(config, max_positions, norm, mixer, gated_mlps(config, names=FUSED_GATE_UP))


def _window(config: JsonObject) -> int | None:
    return sliding_window(config) if config.has("sliding_window") else None


def _rope(config: JsonObject, max_positions: int, head_dim: int) -> RopeConfig:
    scaling = config.nested("rope_scaling") or config.nested("rope_parameters")
    kind = None if scaling is None else scaling.get("rope_type") or scaling.get("type")
    if scaling is None or kind not in ("longrope", "su", "yarn"):  # old names of one kind
        return RopeConfig.from_json(config, max_positions, rotated=1.0)
    plain = {"rope_type": "default"}
    inside = JsonObject(
        config.origin, {**config.fields, "rope_scaling": {**scaling.fields, **plain}}
    )
    rope = RopeConfig.from_json(inside, max_positions, rotated=1.0)
    original = config.integer("original_max_position_embeddings", 1, MAX_POSITIONS, 4096)
    num_pairs = int(head_dim * rope.partial_rotary_factor) // 2
    return replace(
        rope,
        kind="longrope",
        factor=scaling.number("factor", 1.0, MAX_FACTOR, max(1.0, max_positions / original)),
        original_max_positions=original,
        attention_factor=scaling.number("attention_factor", 0.0, MAX_FACTOR)
        if scaling.has("attention_factor")
        else None,
        periods=_factors(scaling, num_pairs),
    )


def _factors(scaling: JsonObject, num_pairs: int) -> tuple[float, ...]:
    given = scaling.get("short_factor")
    numbers = given if isinstance(given, list) else []
    factors = [
        float(each) for each in numbers if isinstance(each, int | float) and 0 < each < MAX_FACTOR
    ]
    if not len(numbers) == len(factors) == num_pairs:
        raise scaling.error("short_factor", f"a list of {num_pairs} numbers above 0")
    return tuple(factors)


PHI3 = Family(_describe, 4096, bos_token_id=1, eos_token_id=32_000)
