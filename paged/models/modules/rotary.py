"""Rotary embeddings: frequencies and scaling, read from config.json.

Both styles of config.json are read, the old one (`rope_theta`, `rope_scaling`) and that of
transformers 5 (`rope_parameters`), for all layers or by kind of layer (full attention, sliding
window). The formulas are in `rotary_tables`. `QueryScaling` scales queries by position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pagedrun.paged.files.json_object import JsonObject

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"]
# "longrope" is read by its one family.
_KINDS: dict[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "proportional": "proportional",
}
DEFAULT_THETA = 10_000.0
MAX_POSITIONS = 2**27
MAX_FACTOR = 1e6


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding; the formulas are in `rotary_tables`.

    `theta` is the base of the geometric series of frequencies. `factor` stretches the context for
    every kind but "default". `original_max_positions` is the context length before stretching, in
    tokens (llama3, yarn, longrope; None: `max_position_embeddings` of the model).
    `low_freq_factor` and `high_freq_factor` belong to llama3, `attention_factor` to `truncate` to
    yarn; `attention_factor` None: derived from `factor`, `mscale` and `mscale_all_dim`. `periods`
    belongs to longrope: factors of the periods of pairs, for contexts up to
    `original_max_positions`. `partial_rotary_factor` is the rotated share of a head's dimensions.
    `rotated_pairs_share` belongs to proportional: share of a head's pairs that are rotated, the
    first ones, with the frequencies of a rotation of all pairs.
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_positions: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    periods: tuple[float, ...] = ()
    partial_rotary_factor: float = 1.0
    rotated_pairs_share: float = 1.0

    @classmethod
    def from_json(
        cls,
        config: JsonObject,
        max_position_embeddings: int,
        *,
        theta: float = DEFAULT_THETA,
        rotated: float | None = None,
    ) -> "RopeConfig":
        """Read the old style (`rope_theta`, `rope_scaling`) and the new one (`rope_parameters`).

        As in transformers 5, `rope_scaling` has precedence over `rope_parameters`, and fields
        inside either over fields beside it. `theta` and `rotated`, the rotated share of a head,
        are defaults of a family; `rotated` None: only 1.0 is supported. Raises `ModelError` for an
        unknown kind and for a missing value or one out of range.
        """
        scaling = config.nested("rope_scaling") or config.nested("rope_parameters")
        theta = config.number("rope_theta", 1.001, 1e15, theta)
        share = _rotated_share(config, rotated)
        if scaling is None:
            return cls(theta=theta, partial_rotary_factor=share)
        original = _original_max_positions(config)
        rope = cls.from_fields(scaling, theta, original, max_position_embeddings)
        if rope.kind == "proportional":
            return rope
        share = _rotated_share(scaling, None if rotated is None else share)
        return replace(rope, partial_rotary_factor=share)

    @classmethod
    def from_fields(
        cls,
        scaling: JsonObject,
        theta: float,
        original: int | None,
        max_position_embeddings: int,
    ) -> "RopeConfig":
        """Read one object of scaling; `theta` and `original` are the fields beside it."""
        kind = _kind(scaling)
        theta = scaling.number("rope_theta", 1.001, 1e15, theta)
        if kind == "default":
            return cls(theta=theta)
        if kind == "linear":
            return cls(theta=theta, kind=kind, factor=scaling.number("factor", 1.0, MAX_FACTOR))
        if kind == "proportional":
            share = scaling.number("partial_rotary_factor", 0.0, 1.0, 1.0)
            factor = scaling.number("factor", 1.0, MAX_FACTOR, 1.0)
            return cls(theta=theta, kind=kind, factor=factor, rotated_pairs_share=share)
        original = original or _original_max_positions(scaling)
        if kind == "llama3":
            return _llama3(scaling, theta, original)
        return _yarn(scaling, theta, original, max_position_embeddings)


def _rotated_share(fields: JsonObject, default: float | None) -> float:
    share = fields.number("partial_rotary_factor", 0.0, 1.0, default or 1.0)
    if default is None and share != 1.0:
        raise fields.error("partial_rotary_factor", "1.0 for a model of this type")
    return share


def _kind(scaling: JsonObject) -> RopeKind:
    name = "rope_type" if scaling.has("rope_type") else "type"
    kind = scaling.string(name) or "default"
    if kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise scaling.error(name, f"one of {known}, the rotary embeddings that pagedrun supports")
    return _KINDS[kind]


def _original_max_positions(fields: JsonObject) -> int | None:
    name = "original_max_position_embeddings"
    return fields.integer(name, 1, MAX_POSITIONS) if fields.has(name) else None


def _llama3(scaling: JsonObject, theta: float, original: int | None) -> RopeConfig:
    low = scaling.number("low_freq_factor", 1e-3, MAX_FACTOR)
    high = scaling.number("high_freq_factor", 1e-3, MAX_FACTOR)
    if low >= high:
        raise scaling.error("high_freq_factor", f"above low_freq_factor, {low:g}")
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=scaling.number("factor", 1.0, MAX_FACTOR),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=original,
    )


def _yarn(
    scaling: JsonObject, theta: float, original: int | None, max_positions: int
) -> RopeConfig:
    if "factor" not in scaling:
        raise scaling.error("factor", f"a number from 1 to {MAX_FACTOR:g}, or null")
    # null means a stretch to max_position_embeddings.
    factor = scaling.number("factor", 1.0, MAX_FACTOR, max_positions / (original or max_positions))
    beta_fast = scaling.number("beta_fast", 1e-3, MAX_FACTOR, 32.0)
    beta_slow = scaling.number("beta_slow", 1e-3, MAX_FACTOR, 1.0)
    if beta_slow > beta_fast:
        raise scaling.error("beta_slow", f"at most beta_fast, {beta_fast:g}")
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_positions=original,
        attention_factor=_optional(scaling, "attention_factor"),
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        mscale=_optional(scaling, "mscale"),
        mscale_all_dim=_optional(scaling, "mscale_all_dim"),
        truncate=scaling.boolean("truncate", True),
    )


def _optional(fields: JsonObject, name: str) -> float | None:
    return fields.number(name, 0.0, MAX_FACTOR) if fields.has(name) else None


_FULL, _SLIDING = "full_attention", "sliding_attention"


def ropes_by_kind(
    config: JsonObject,
    windows: Sequence[int | None],
    max_positions: int,
    *,
    full_theta: float,
    sliding_theta: float,
) -> list[RopeConfig]:
    """Return the rotation of each layer, by kind of layer: with and without a window.

    The new style has an object for each kind in `rope_parameters`. In the old style `rope_theta`
    and `rope_scaling` apply to full attention alone. The thetas are defaults. Raises `ModelError`
    as `RopeConfig.from_fields` does.
    """
    given = config.nested("rope_parameters") or JsonObject(config.origin, {})
    if given.fields and not (_FULL in given or _SLIDING in given):
        raise config.error("rope_parameters", f'an object with "{_FULL}" and "{_SLIDING}"')

    def kind(name: str, theta: float, scaling: JsonObject | None) -> RopeConfig:
        fields = scaling or given.nested(name)
        if fields is None:
            return RopeConfig(theta)
        if scaling is not None and (inner := given.nested(name)) is not None:
            theta = inner.number("rope_theta", 1.001, 1e15, theta)
        return RopeConfig.from_fields(fields, theta, None, max_positions)

    full_theta = config.number("rope_theta", 1.001, 1e15, full_theta)
    full = kind(_FULL, full_theta, config.nested("rope_scaling"))
    sliding = kind(_SLIDING, sliding_theta, None)
    return [full if window is None else sliding for window in windows]


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Factor 1 + beta * ln(1 + floor(p / length)) of the query at position p.

    It keeps attention sharp over contexts longer than `length` tokens: Nakanishi 2025,
    "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399.
    """

    beta: float
    length: int
