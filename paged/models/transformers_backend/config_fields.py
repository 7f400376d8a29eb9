"""Fields of config.json that Transformers may see, and the config that it builds of them.

Fields that name code, files or kernels are removed, whatever their values: a model folder
cannot make Transformers run anything. Errors of its own are shortened to one sentence. Nothing
here imports Transformers before it is called; `generates_text` does not import it at all.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.modules.rotary import MAX_POSITIONS
from pagedrun.paged.values.errors import ModelError, option
from pagedrun.paged.values.json_value import JSONValue

# Fields about execution, files or kernels rather than the model; so are those with a leading
# underscore.
_HIDDEN_FIELDS = frozenset(
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
# Limits beyond any model, but small enough to build one; contexts long enough for the checks.
_RANGES = {
    "num_hidden_layers": (1, 1024),
    "hidden_size": (1, 2**20),
    "vocab_size": (2, 2**24),
    "num_attention_heads": (1, 2**14),
    "max_position_embeddings": (64, MAX_POSITIONS),
}
_INFINITIES = ("Infinity", "-Infinity")
_REQUIRED = ("num_hidden_layers", "hidden_size")


def visible_fields(config: JsonObject) -> str:
    """Return the fields of a config.json that Transformers may read, as JSON.

    Raises `ModelError` for a folder that names its own code, and for quantized weights.
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
    return json.dumps(_visible(config.fields), sort_keys=True)


def transformers_config(origin: str, fields: str) -> Any:
    """Return the config object of Transformers for `visible_fields` of the file `origin`.

    Raises `ModelError` for a type that is no causal language model of Transformers, and for fields
    that it refuses.
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
        with quiet_transformers():
            made = CONFIG_MAPPING[model_type].from_dict(dict(config.fields))
            values = {name: getattr(made, name, None) for name in _RANGES}
    except Exception as error:  # checks of Transformers, of any kind
        raise ModelError(
            f"{origin}: Transformers {__version__} cannot build a {model_type} from it "
            f"({error_summary(error)})"
        ) from error
    for name, (least, most) in _RANGES.items():
        value = values[name]
        if value is None and name in _REQUIRED:
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


def _visible(fields: Mapping[str, JSONValue]) -> dict[str, JSONValue]:
    """Return the visible fields, also of nested objects."""
    return {
        name: _value(value)
        for name, value in fields.items()
        if name not in _HIDDEN_FIELDS and not name.startswith("_")
    }


def _value(value: JSONValue) -> JSONValue:
    """Return a value as Transformers reads it, with its notation for infinity resolved."""
    if isinstance(value, list):
        return [_value(each) for each in value]
    if not isinstance(value, dict):
        return value
    written = value.get("__float__")
    if len(value) == 1 and isinstance(written, str) and written in _INFINITIES:
        return float(written)
    return _visible(value)


MAX_SHOWN = 200
# Messages of Hugging Face's checked dataclasses: a field of the wrong type, inconsistent fields.
_FIELD = re.compile(r"Validation error for field '(\w+)':")
_FIELDS = re.compile(r"Class validation error for validator '\w+':\s*\w+: (.*)")
_EXPECTED = re.compile(r"expected (?:a )?(\w+), got")
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "dict": "an object",
    "list": "a list",
    "tuple": "a list",
    "NoneType": "null",
}


def error_summary(error: Exception) -> str:
    """Return the class of an error and the first line of its message, cut to 200 characters.

    For a field of the wrong type: its name and the expected type.
    """
    text = str(error).strip()
    field = _FIELD.match(text)
    if field is not None:
        names = dict.fromkeys(_EXPECTED.findall(text))
        wanted = " or ".join(_TYPES[name] for name in names if name in _TYPES)
        return f"{field[1]} must be {wanted or 'another value'}"[:MAX_SHOWN]
    fields = _FIELDS.match(text)
    if fields is not None:
        return fields[1].replace("`", "")[:MAX_SHOWN]
    lines = text.splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:MAX_SHOWN]}"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress warnings and progress bars of Transformers within the context."""
    from transformers.utils import logging

    before, drew = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if drew:
            logging.enable_progress_bar()


_LISTS = "models/auto/modeling_auto.py"
_CAUSAL, _MASKED = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
_ENTRY = re.compile(r'\("([\w.-]+)",')


def generates_text(model_type: str | None) -> bool:
    """Return true if Transformers has a type as a causal language model and not as an encoder.

    Its lists are read, not imported.
    """
    return model_type in _listed_types(_CAUSAL) and model_type not in _listed_types(_MASKED)


def is_encoder(model_type: str | None) -> bool:
    """Return true if Transformers has a type as an encoder; its lists are read, not imported."""
    return model_type in _listed_types(_MASKED)


def _listed_types(name: str) -> set[str]:
    """Return the types of a list of Transformers; none if there is no such list."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return set()
    try:
        text = (Path(spec.origin).parent / _LISTS).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return set()
    listed = text.partition(f"\n{name} = OrderedDict(")[2].partition("\n)")[0]
    return set(_ENTRY.findall(listed))
