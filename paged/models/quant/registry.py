"""Registry of linear methods by the `quant_method` of config.json.

A method is built from the `quantization_config` of config.json, or from modelopt's
hf_quant_config.json beside it. Without either the weights are plain matrices.
"""

from collections.abc import Callable
from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.modules.linear import LinearMethod
from pagedrun.paged.models.quant.bitsandbytes import bitsandbytes
from pagedrun.paged.models.quant.compressed_tensors import compressed_tensors
from pagedrun.paged.models.quant.fp4 import modelopt
from pagedrun.paged.models.quant.fp8 import fp8
from pagedrun.paged.models.quant.gguf import gguf
from pagedrun.paged.models.quant.gptq_awq import awq, gptq
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.values.errors import ModelError

# By `quant_method`; None without a quantization_config, which is then empty.
LINEAR_METHODS: dict[str | None, Callable[[JsonObject], LinearMethod]] = {
    None: lambda quantization: Dense(),
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "gguf": gguf,
    "gptq": gptq,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
}


def linear_method(config: JsonObject) -> LinearMethod:
    """Return the method of a config.json; raises `ModelError` for an unknown one."""
    for name in ("quantization_config", "compression_config"):
        if config.has(name):
            return _quantized(config, name)
    return LINEAR_METHODS[None](JsonObject(config.origin, {}))


def _quantized(config: JsonObject, name: str) -> LinearMethod:
    quantization = config.get(name)
    fields = quantization if isinstance(quantization, dict) else {}
    method = fields.get("quant_method")
    if not isinstance(method, str) or method not in LINEAR_METHODS:
        known = ", ".join(each for each in LINEAR_METHODS if each is not None)
        by = f" by {ascii(method)[:40]}" if isinstance(method, str) else ""
        raise ModelError(
            f"{config.origin}: {name} says that the weights are quantized{by}, which pagedrun "
            f"cannot read (it reads {known}); use one of those, or the float16, bfloat16 or "
            "float32 version of the model"
        )
    return LINEAR_METHODS[method](JsonObject(f"{config.origin}: {name}", fields))


_FIELD = "quantization_config"


def with_quantization(folder: Path, config: JsonObject) -> JsonObject:
    """Return config.json with the quantization of modelopt's hf_quant_config.json, if it has none.

    Raises `ModelError` if that file is damaged.
    """
    path = folder / "hf_quant_config.json"
    if config.has(_FIELD) or not path.exists():
        return config
    described = JsonObject.read(path).section("quantization")
    if not described.has("quant_algo"):
        return config
    fields = {**described.fields, "quant_method": "modelopt"}
    return JsonObject(config.origin, {**config.fields, _FIELD: fields})
