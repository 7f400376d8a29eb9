"""Which method reads the linear layers of a model folder."""

from collections.abc import Callable

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.linears.awq import awq
from pagedrun.paged.models.linears.bitsandbytes import bitsandbytes
from pagedrun.paged.models.linears.compressed_tensors import compressed_tensors
from pagedrun.paged.models.linears.dense import Dense
from pagedrun.paged.models.linears.fp8 import fp8
from pagedrun.paged.models.linears.gguf_blocks import gguf
from pagedrun.paged.models.linears.gptq import gptq
from pagedrun.paged.models.linears.modelopt import modelopt
from pagedrun.paged.models.network.linear_spec import LinearMethod
from pagedrun.paged.values.errors import ModelError

# By the `quant_method` of a quantization_config, from which the method is made. None: there is no
# such config, and the method is made from an empty one.
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
    """Return the method of a config.json; raises `ModelError` for one that is not known."""
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
