"""Heads that differ by the kind of layer: full attention, or a sliding window."""

from collections.abc import Sequence

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.heads import Heads
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

_GLOBAL_HEAD_DIM = 512
_NAMES = {"head_dim", "num_key_value_heads"}


def full_heads(config: JsonObject, windows: Sequence[int | None]) -> Heads:
    """Return the heads of layers without a window.

    What transformers 5 saves has them layer by layer in `per_layer_config`, the files on the hub in
    `global_head_dim` and, if keys are values, in `num_global_key_value_heads`. Raises `ModelError`
    for layers of one kind that differ.
    """
    given: dict[str, JSONValue]
    if config.has("per_layer_config"):
        given = _of_full_layers(config, windows)
    else:
        given = {"head_dim": config.integer("global_head_dim", 1, 2**12, _GLOBAL_HEAD_DIM)}
        fewer = "num_global_key_value_heads"
        if config.boolean("attention_k_eq_v", False) and config.has(fewer):
            given["num_key_value_heads"] = config.integer(fewer, 1, 2**14)
    return Heads.from_json(JsonObject(config.origin, {**config.fields, **given}))


def _of_full_layers(config: JsonObject, windows: Sequence[int | None]) -> dict[str, JSONValue]:
    given = config.section("per_layer_config").fields
    full = [str(layer) for layer, window in enumerate(windows) if window is None]
    heads = given.get(full[0])
    alike = sorted(given) == sorted(full) and all(given[layer] == heads for layer in full)
    if not alike or not isinstance(heads, dict) or heads.keys() - _NAMES:
        raise ModelError(
            f"{config.origin}: per_layer_config gives layers different shapes, which "
            "pagedrun does not support, except head_dim and num_key_value_heads of all "
            "layers with full attention"
        )
    return heads
