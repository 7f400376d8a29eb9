"""compressed-tensors: several formats under one name, as llm-compressor writes them."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.linears.four_bit_floats import FourBitFloats
from pagedrun.paged.models.linears.fp8 import block_size
from pagedrun.paged.models.linears.int8_activations import Int8Activations
from pagedrun.paged.models.linears.pack_quantized import PackQuantized
from pagedrun.paged.models.linears.packed_bits import group_size, num_bits
from pagedrun.paged.models.linears.scaled_codes import ScaledCodes
from pagedrun.paged.models.linears.unpacked import Unpacked
from pagedrun.paged.models.linears.weight_format import WeightFormat
from pagedrun.paged.models.network.checkpoint.tensor_names import HEAD
from pagedrun.paged.models.network.linear_spec import LinearMethod
from pagedrun.paged.values.json_value import JSONValue

# The dtype of the codes in the formats that store one number a weight.
_PLAIN_CODES = {"float-quantized": "F8_E4M3", "int-quantized": "I8"}
_NAIVE = "naive-quantized"  # the same two, under an older name
_MIXED = "mixed-precision"
_PACKED = "pack-quantized"
_FOUR_BITS = {
    "nvfp4-pack-quantized": FourBitFloats("weight_packed", 16, "weight_global_scale", divides=True),
    "mxfp4-pack-quantized": FourBitFloats("weight_packed", 32),
}
_FORMATS = (*_PLAIN_CODES, _PACKED, *_FOUR_BITS)
_STRATEGIES = ("tensor", "channel", "group", "block")
_MAX_GROUPS = 64
# Activations that are rounded token by token, as they come.
_INT8_TOKENS: dict[str, JSONValue] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}


def compressed_tensors(quantization: JsonObject) -> LinearMethod:
    """Return the method of a quantization_config.

    Raises `ModelError` for a format, or a kind of weights, that is not read.
    """
    if quantization.string("quantization_status") not in (None, "compressed"):
        raise quantization.error("quantization_status", '"compressed"')
    sparsity = quantization.nested("sparsity_config")
    if sparsity is not None and sparsity.string("format") not in (None, "dense"):
        raise sparsity.error("format", '"dense": pagedrun reads no sparse weights')
    if quantization.nested("transform_config") is not None:
        raise quantization.error("transform_config", "absent: pagedrun transforms no activations")
    groups = quantization.section("config_groups")
    if not 1 <= len(groups.fields) <= _MAX_GROUPS:
        raise quantization.error("config_groups", f"an object with 1 to {_MAX_GROUPS} groups")
    formats: list[WeightFormat] = []
    in_int8 = []
    for number, fields in enumerate(groups.fields.values()):  # their names may be anything
        if not isinstance(fields, dict):
            raise quantization.error("config_groups", "an object of objects")
        group = JsonObject(f"{groups.origin}: {number}", fields)
        formats.append(_format(group, quantization))
        in_int8.append(formats[-1] == ScaledCodes("I8") and _rounds_tokens_to_int8(group))
    if all(in_int8):
        ignored = quantization.get("ignore")
        return Int8Activations(isinstance(ignored, list) and HEAD in ignored)
    return Unpacked(tuple(dict.fromkeys(formats)))


def _rounds_tokens_to_int8(group: JsonObject) -> bool:
    """Return whether activations are to be rounded to int8, with a scale for each token."""
    inputs = group.nested("input_activations")
    if inputs is None or group.nested("output_activations") is not None:
        return False
    inputs = inputs.with_defaults({"num_bits": 8, "type": "int", "symmetric": True})
    return all(inputs.get(name) == wanted for name, wanted in _INT8_TOKENS.items())


def _format(group: JsonObject, quantization: JsonObject) -> WeightFormat:
    """Return how the weights of a group are stored."""
    weights = group.section("weights")
    by_group = quantization.string("format") == _MIXED and group.has("format")
    fields = group if by_group else quantization
    name, is_float = fields.string("format"), weights.string("type") == "float"
    if name == _NAIVE:
        name = "float-quantized" if is_float else "int-quantized"
    if name not in _FORMATS:
        raise fields.error("format", f"one of {', '.join(_FORMATS)}, which pagedrun reads")
    if is_float != (name == "float-quantized" or name in _FOUR_BITS):
        raise weights.error("type", f'"{"int" if is_float else "float"}" in the format {name}')
    if name in _FOUR_BITS:
        whole = _FOUR_BITS[name].group_size
        weights.integer("num_bits", 4, 4)
        weights.integer("group_size", whole, whole, whole)
        return _FOUR_BITS[name]
    strategy = weights.string("strategy") or "tensor"
    if strategy not in _STRATEGIES:
        raise weights.error("strategy", f"one of {', '.join(_STRATEGIES)}")
    is_symmetric = weights.boolean("symmetric", True)
    if name == _PACKED:
        if strategy not in ("channel", "group"):
            raise weights.error("strategy", f'"channel" or "group" in the format {name}')
        size = group_size(weights, "group_size") if strategy == "group" else None
        return PackQuantized(num_bits(weights, "num_bits"), size, is_symmetric)
    weights.integer("num_bits", 8, 8)
    if not is_symmetric:
        raise weights.error(
            "symmetric", f"true, the only variant of the format {name} that pagedrun reads"
        )
    return ScaledCodes(_PLAIN_CODES[name], _block(weights, strategy))


def _block(weights: JsonObject, strategy: str) -> tuple[int, int] | None:
    if strategy == "group":
        size = group_size(weights, "group_size")
        return None if size is None else (1, size)
    if strategy == "block":
        if not weights.has("block_structure"):
            raise weights.error("block_structure", "two integers")
        return block_size(weights, "block_structure")
    return None
