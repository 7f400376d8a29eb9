"""FP8: weights in E4M3, as Transformers, DeepSeek and Qwen store them."""

from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.models.linears.scaled_codes import ScaledCodes
from pagedrun.paged.models.linears.unpacked import Unpacked

_E4M3 = (None, "e4m3", "float8_e4m3fn")
MAX_BLOCK = 2**16


def fp8(quantization: JsonObject) -> Unpacked:
    """Return the method of a quantization_config; raises `ModelError` for another kind of FP8."""
    if quantization.string("fmt") not in _E4M3:
        raise quantization.error("fmt", '"e4m3", the only FP8 format that pagedrun reads')
    return Unpacked((ScaledCodes("F8_E4M3", block_size(quantization, "weight_block_size")),))


def block_size(fields: JsonObject, name: str) -> tuple[int, int] | None:
    """Return how many rows and columns have one scale, None where there are no blocks."""
    if not fields.has(name):
        return None
    sizes = fields.get(name)
    found = [each for each in sizes if is_integer(each)] if isinstance(sizes, list) else []
    if len(found) != 2 or sizes != found or not all(1 <= each <= MAX_BLOCK for each in found):
        raise fields.error(name, f"two integers from 1 to {MAX_BLOCK}")
    return found[0], found[1]
