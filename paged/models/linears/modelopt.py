"""modelopt: what NVIDIA's TensorRT Model Optimizer writes."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.linears.four_bit_floats import FourBitFloats
from pagedrun.paged.models.linears.scaled_codes import ScaledCodes
from pagedrun.paged.models.linears.unpacked import Unpacked

_GROUP = 16
_ALGORITHMS = ("FP8", "NVFP4")
# A model may have layers of both, whichever is named.
_FORMATS = (FourBitFloats("weight", _GROUP, "weight_scale_2"), ScaledCodes("F8_E4M3"))


def modelopt(quantization: JsonObject) -> Unpacked:
    """Return the method of a quantization_config; raises `ModelError` for other algorithms."""
    if quantization.string("quant_algo") not in _ALGORITHMS:
        raise quantization.error("quant_algo", f"one of {', '.join(_ALGORITHMS)}")
    quantization.integer("group_size", _GROUP, _GROUP, _GROUP)
    return Unpacked(_FORMATS)
