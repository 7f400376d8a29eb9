"""compressed-tensors: the formats of llm-compressor, several under one `quant_method`.

`float-quantized` and `int-quantized` are FP8 and INT8 codes, `nvfp4-pack-quantized` and
`mxfp4-pack-quantized` FP4 codes, `pack-quantized` integers packed along each row.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import CodeForm
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import (
    HEAD,
    Parameter,
    StoredTensors,
    number_bytes,
)
from pagedrun.paged.models.modules.linear import LinearMethod, Projection
from pagedrun.paged.models.quant.fp4 import Fp4Weights
from pagedrun.paged.models.quant.fp8 import ScaledWeights, block_size
from pagedrun.paged.models.quant.gptq_awq import ascending_order, group_size, num_bits, num_groups
from pagedrun.paged.models.quant.int8 import Int8Activations
from pagedrun.paged.models.quant.linear_methods import QuantizedWeights, WeightFormat, parameter
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.json_value import JSONValue

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

# dtype of the codes in formats with one element per weight.
_PLAIN_CODES = {"float-quantized": "F8_E4M3", "int-quantized": "I8"}
_NAIVE = "naive-quantized"  # older name of the same two
_MIXED = "mixed-precision"
_PACK_QUANTIZED = "pack-quantized"
_FOUR_BITS = {
    "nvfp4-pack-quantized": Fp4Weights(
        "weight_packed", 16, "weight_global_scale", scale_is_inverse=True
    ),
    "mxfp4-pack-quantized": Fp4Weights("weight_packed", 32),
}
_FORMATS = (*_PLAIN_CODES, _PACK_QUANTIZED, *_FOUR_BITS)
_STRATEGIES = ("tensor", "channel", "group", "block")
_MAX_GROUPS = 64
# Activations that are quantized token by token.
_INT8_TOKENS: dict[str, JSONValue] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}


def compressed_tensors(quantization: JsonObject) -> LinearMethod:
    """Return the method of a quantization_config; raises `ModelError` for an unsupported one."""
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
        formats.append(_weight_format(group, quantization))
        in_int8.append(formats[-1] == ScaledWeights("I8") and _rounds_tokens_to_int8(group))
    if all(in_int8):
        ignored = quantization.get("ignore")
        return Int8Activations(isinstance(ignored, list) and HEAD in ignored)
    return QuantizedWeights(tuple(dict.fromkeys(formats)))


def _rounds_tokens_to_int8(group: JsonObject) -> bool:
    """Return whether activations are quantized to int8 with a scale per token."""
    inputs = group.nested("input_activations")
    if inputs is None or group.nested("output_activations") is not None:
        return False
    inputs = inputs.with_defaults({"num_bits": 8, "type": "int", "symmetric": True})
    return all(inputs.get(name) == wanted for name, wanted in _INT8_TOKENS.items())


def _weight_format(group: JsonObject, quantization: JsonObject) -> WeightFormat:
    """Return the format of the weights of a group."""
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
    if name == _PACK_QUANTIZED:
        if strategy not in ("channel", "group"):
            raise weights.error("strategy", f'"channel" or "group" in the format {name}')
        size = group_size(weights, "group_size") if strategy == "group" else None
        return PackQuantized(num_bits(weights, "num_bits"), size, is_symmetric)
    weights.integer("num_bits", 8, 8)
    if not is_symmetric:
        raise weights.error(
            "symmetric", f"true, the only variant of the format {name} that pagedrun reads"
        )
    return ScaledWeights(_PLAIN_CODES[name], _scale_block(weights, strategy))


def _scale_block(weights: JsonObject, strategy: str) -> tuple[int, int] | None:
    if strategy == "group":
        size = group_size(weights, "group_size")
        return None if size is None else (1, size)
    if strategy == "block":
        if not weights.has("block_structure"):
            raise weights.error("block_structure", "two integers")
        return block_size(weights, "block_structure")
    return None


@dataclass(frozen=True, slots=True)
class PackQuantized(WeightFormat):
    """`weight_packed` [out_features, in_features * num_bits / 32], words of neighboring columns.

    `group_size` columns share a scale in each row, and a zero point unless `is_symmetric`; None:
    all columns. `weight_g_idx` [in_features], if stored, is the group of each column.
    """

    num_bits: int
    group_size: int | None
    is_symmetric: bool

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return words, scales and the shape; zero points and groups if stored."""
        packed = stored.get(f"{part.name}.weight_packed")
        num_codes, out = 32 // self.num_bits, part.out_features
        shape = (out, -(-in_features // num_codes))
        if packed is None:
            return None
        groups = num_groups(in_features, self.group_size)
        found = [
            parameter(part, "weight_packed", shape, "I32"),
            parameter(part, "weight_shape", (2,), "I64"),
        ]
        if not self.is_symmetric:
            zeros = (-(-out // num_codes), groups)
            found.append(parameter(part, "weight_zero_point", zeros, "I32"))
        if stored.get(f"{part.name}.weight_g_idx") is not None:
            found.append(parameter(part, "weight_g_idx", (in_features,), "I32"))
        return *found, parameter(part, "weight_scale", (out, groups))

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return codes of `num_bits`, with zero points unless symmetric."""
        return CodeForm(
            self.num_bits,
            self.group_size,
            number_bytes(stored, f"{part.name}.weight_scale"),
            has_zeros=not self.is_symmetric,
            is_scattered=stored.get(f"{part.name}.weight_g_idx") is not None,
        )

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales."""
        import torch

        from pagedrun.kernels.quantized_weight import DeferredCodes, GroupScales, PackedWeight

        unpack, order = source.kernels.unpack_codes, ascending_order(self.num_bits)

        def read(end: str) -> "Tensor":
            return source.read(f"{part.name}.{end}").to(source.device)

        if read("weight_shape").tolist() != [part.out_features, in_features]:
            raise ModelError(
                f"{part.name}.weight_shape is not [{part.out_features}, {in_features}], as "
                "config.json says; check that both come from the same model"
            )
        packed = read("weight_packed")

        def codes(start: int, end: int) -> "Tensor":
            return unpack(packed[start:end], self.num_bits, order)[:, :in_features]

        zeros = None
        if not self.is_symmetric:  # packed along the other axis
            words = read("weight_zero_point").T.contiguous()
            zeros = unpack(words, self.num_bits, order)[:, : part.out_features].T.contiguous()
        is_ordered = source.stored.get(f"{part.name}.weight_g_idx") is None
        return PackedWeight(
            DeferredCodes(torch.Size([part.out_features, in_features]), torch.int8, codes),
            self.num_bits,
            GroupScales(read("weight_scale")),
            self.group_size or in_features,
            zeros=zeros,
            group_of=None if is_ordered else read("weight_g_idx").long(),
        )
