"""Rotations that differ by the kind of layer: full attention, or a sliding window."""

from collections.abc import Sequence

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.rope_config import RopeConfig

_FULL, _SLIDING = "full_attention", "sliding_attention"


def ropes_by_kind(
    config: JsonObject,
    windows: Sequence[int | None],
    max_positions: int,
    *,
    full_theta: float,
    sliding_theta: float,
) -> list[RopeConfig]:
    """Return each layer's rotation, as config.json gives it to layers with and without a window.

    The new style has an object for each kind in `rope_parameters`. In the old one `rope_theta` and
    `rope_scaling` belong to full attention alone. The thetas are those of a kind of layer of which
    config.json says nothing. Raises `ModelError` as `RopeConfig.from_fields` does.
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
