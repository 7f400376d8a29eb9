"""What of a config.json the library gets to see: numbers and names, nothing that leads to code."""

import json
from collections.abc import Mapping
from typing import Any

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.library.library_error import said
from pagedrun.paged.models.library.quiet import quiet
from pagedrun.paged.models.rope_config import MAX_POSITIONS
from pagedrun.paged.values.errors import ModelError, option
from pagedrun.paged.values.json_value import JSONValue

# Fields that say how to run a model, or which files or kernels to get, rather than what it is.
# Those that begin with an underscore are of this kind too.
_NOT_READ = frozenset(
    {
        *(
            "auto_map",
            "attn_implementation",
            "experts_implementation",
            "transformers_weights",
            "use_kernels",
        ),
        *("dtype", "torch_dtype", "torchscript", "use_cache", "return_dict"),
        *("output_attentions", "output_hidden_states", "output_router_logits"),
        *("id2label", "label2id", "task_specific_params"),
    }
)
_QUANTIZED = ("quantization_config", "compression_config")
# Past any model, but few enough to be built; and contexts long enough to be tried out.
_RANGES = {
    "num_hidden_layers": (1, 1024),
    "hidden_size": (1, 2**20),
    "vocab_size": (2, 2**24),
    "num_attention_heads": (1, 2**14),
    "max_position_embeddings": (64, MAX_POSITIONS),
}
_NOT_IN_JSON = ("Infinity", "-Infinity")
_OF_EVERY_DECODER = ("num_hidden_layers", "hidden_size")


def visible_fields(config: JsonObject) -> str:
    """Return as JSON what the library gets to see of a config.json.

    Raises `ModelError` for a folder that names code of its own, and for quantised weights.
    """
    if config.has("auto_map"):
        raise ModelError(
            f"{config.origin} names its own code (auto_map), which is never run; remove "
            "auto_map if Transformers itself supports the model"
        )
    for name in _QUANTIZED:
        if config.has(name):
            raise ModelError(
                f"{config.origin}: {name} says that the weights are quantized, which "
                f"{option('model_impl')} transformers does not support; use an unquantized "
                "version of the model"
            )
    return json.dumps(_read(config.fields), sort_keys=True)


def library_config(origin: str, fields: str) -> Any:
    """Return the library's own object for `visible_fields` of the file `origin`.

    Raises `ModelError` for a type that the library does not know as a causal language model, and
    for fields that it refuses.
    """
    # Imported here: it takes seconds.
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = JsonObject(origin, json.loads(fields))
    model_type = config.string("model_type")
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        wanted = f"a causal language model that Transformers {__version__} supports"
        raise config.error("model_type", wanted)
    try:
        with quiet():
            made = CONFIG_MAPPING[model_type].from_dict(dict(config.fields))
            values = {name: getattr(made, name, None) for name in _RANGES}
    except Exception as error:  # the library's own checks, of any kind
        raise ModelError(
            f"{origin}: Transformers {__version__} cannot build a {model_type} from it "
            f"({said(error)})"
        ) from error
    for name, (least, most) in _RANGES.items():
        value = values[name]
        if value is None and name in _OF_EVERY_DECODER:
            raise ModelError(
                f"{origin}: model_type {model_type!r} has no {name} when read by Transformers, "
                "which happens if its text decoder is one of several parts; "
                f"{option('model_impl')} transformers does not support such models"
            )
        if value is not None and not (isinstance(value, int) and least <= value <= most):
            raise ModelError(
                f"{origin}: {name} is {str(value)[:80]} when read by Transformers; it must be an "
                f"integer from {least} to {most}"
            )
    return made


def _read(fields: Mapping[str, JSONValue]) -> dict[str, JSONValue]:
    """Return the fields that are read, those of nested objects too."""
    return {
        name: _value(value)
        for name, value in fields.items()
        if name not in _NOT_READ and not name.startswith("_")
    }


def _value(value: JSONValue) -> JSONValue:
    """Return a value as the library reads it, which writes infinity as an object of its own."""
    if isinstance(value, list):
        return [_value(each) for each in value]
    if not isinstance(value, dict):
        return value
    written = value.get("__float__")
    if len(value) == 1 and isinstance(written, str) and written in _NOT_IN_JSON:
        return float(written)
    return _read(value)
