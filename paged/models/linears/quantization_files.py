"""What some programs write of a model's quantisation into a file beside config.json."""

from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject

_FIELD = "quantization_config"


def with_quantization(folder: Path, config: JsonObject) -> JsonObject:
    """Return config.json with the quantisation that hf_quant_config.json describes, as modelopt
    writes it, where config.json itself describes none.

    Raises `ModelError` if that file is there and damaged.
    """
    path = folder / "hf_quant_config.json"
    if config.has(_FIELD) or not path.is_file():
        return config
    described = JsonObject.read(path).section("quantization")
    if not described.has("quant_algo"):
        return config
    fields = {**described.fields, "quant_method": "modelopt"}
    return JsonObject(config.origin, {**config.fields, _FIELD: fields})
