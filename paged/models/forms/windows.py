"""Sliding windows, read as transformers 5 reads them."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.rope_config import MAX_POSITIONS

# The window of a config.json that does not name one, and the first layer that has it (Qwen).
_DEFAULT_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28


def sliding_window(config: JsonObject) -> int | None:
    """Return `sliding_window`, which an explicit null switches off."""
    if "sliding_window" in config and not config.has("sliding_window"):
        return None
    return config.integer("sliding_window", 1, MAX_POSITIONS, _DEFAULT_WINDOW)


def layer_windows(
    config: JsonObject, window: int | None, first_layer: int = 0
) -> tuple[int | None, ...]:
    """Return each layer's window: `layer_types` says which have one, else all from `first_layer`.

    Raises `ModelError` for layers that slide where there is no window.
    """
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    layer_types = _layer_types(config, num_layers)
    if layer_types is None:
        return tuple(window if layer >= first_layer else None for layer in range(num_layers))
    slides = [kind == "sliding_attention" for kind in layer_types]
    if any(slides) and window is None:
        raise config.error("layer_types", "without sliding_attention, as no window is enabled")
    return tuple(window if slide else None for slide in slides)


def periodic_windows(config: JsonObject, window: int | None, period: int) -> tuple[int | None, ...]:
    """Return each layer's window: `layer_types` says which have one, else all but every `period`th.

    Raises `ModelError` for layers that slide where there is no window.
    """
    if window is None:
        raise config.error(
            "sliding_window", "an integer of at least 1, for the layers with a sliding window"
        )
    if config.get("layer_types") is not None:
        return layer_windows(config, window)
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    return tuple(window if layer % period else None for layer in range(1, num_layers + 1))


def upper_layer_windows(config: JsonObject) -> tuple[int | None, ...]:
    """Return each layer's window where layers from `max_window_layers` on have one, if any."""
    window = sliding_window(config) if config.boolean("use_sliding_window", False) else None
    first_layer = 0
    if config.get("layer_types") is None:
        first_layer = config.integer("max_window_layers", 0, 2**20, _DEFAULT_MAX_WINDOW_LAYERS)
    return layer_windows(config, window, first_layer)


def alike_windows(config: JsonObject, window: int | None) -> tuple[int | None, ...]:
    """Return the same window for each layer, whatever `layer_types` says."""
    return (window,) * config.integer("num_hidden_layers", 1, 4096)


def every_other_layer_windows(config: JsonObject) -> tuple[int | None, ...]:
    """Return windows of layers 0, 2, ... below `max_window_layers`, where there is no list."""
    window = sliding_window(config) if config.boolean("use_sliding_window", False) else None
    if config.get("layer_types") is not None:
        return layer_windows(config, window)
    last = config.integer("max_window_layers", 0, 2**20, _DEFAULT_MAX_WINDOW_LAYERS)
    windows = alike_windows(config, window)
    return tuple(
        each if layer % 2 == 0 and layer < last else None for layer, each in enumerate(windows)
    )


def _layer_types(config: JsonObject, num_layers: int) -> list[str] | None:
    layer_types = config.get("layer_types")
    if layer_types is None:
        return None
    known = ("full_attention", "sliding_attention", "attention")  # the last: an old name
    given = layer_types if isinstance(layer_types, list) else []
    kinds = [kind for kind in given if isinstance(kind, str) and kind in known]
    if not len(given) == len(kinds) == num_layers:
        raise config.error(
            "layer_types",
            f'a list of "full_attention" or "sliding_attention" for each of {num_layers} layers',
        )
    return kinds
