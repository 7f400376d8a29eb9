"""bitsandbytes: blocks of 4-bit table indices (NF4, FP4), and rows of 8-bit codes (LLM.int8)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.kernels.quantized_form import CodeForm
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import Parameter, Role, StoredTensors
from pagedrun.paged.models.modules.linear import Projection
from pagedrun.paged.models.quant.linear_methods import QuantizedWeights, WeightFormat, parameter
from pagedrun.paged.values.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from pagedrun.kernels.quantized_weight import PackedWeight
    from pagedrun.paged.models.checkpoint.weight_source import WeightSource

_BLOCK_SIZES = (64, 32, 128, 256, 512, 1024, 2048, 4096)
_NESTED_SIZE = 256  # blocks that share one nested scale
_STATE = "quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_MAX_STATE_BYTES = 4096


def bitsandbytes(quantization: JsonObject) -> QuantizedWeights:
    """Return the method of a quantization_config; raises `ModelError` unless codes are bytes."""
    if quantization.string("bnb_4bit_quant_storage") not in (None, "uint8"):
        raise quantization.error("bnb_4bit_quant_storage", '"uint8"')
    return QuantizedWeights((Bnb4Bit(), BnbInt8()))


@dataclass(frozen=True, slots=True)
class Bnb4Bit(WeightFormat):
    """`weight` [out_features * in_features / 2, 1] uint8, the high half of each byte first.

    Codes are indices into `weight.quant_map` [16]. `weight.absmax` has a factor for each block of
    consecutive weights, across rows. Factors may be 8-bit codes: indices into
    `weight.nested_quant_map` [256], times `weight.nested_absmax` for each 256 of them, plus the
    `nested_offset` in the JSON of `weight.quant_state.…`.
    """

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return codes, table, factors, and the bytes of the JSON."""
        weight = f"{part.name}.weight"
        codes = stored.get(weight)
        if codes is None or codes.dtype != "U8":
            return None
        num_weights = part.out_features * in_features
        num_blocks = _num_blocks(num_weights, weight, stored)
        state = _state_name(weight, stored)
        found = [
            parameter(part, "weight", (-(-num_weights // 2), 1), "U8"),
            parameter(part, "weight.quant_map", (16,), "F32"),
            Parameter(state, _state_shape(state, stored), Role.QUANTIZED, dtypes=("U8",)),
        ]
        is_nested = stored.get(f"{weight}.nested_absmax") is not None
        dtype = "U8" if is_nested else "F32"
        found.append(parameter(part, "weight.absmax", (num_blocks,), dtype))
        if is_nested:
            nested = -(-num_blocks // _NESTED_SIZE)
            found.append(parameter(part, "weight.nested_absmax", (nested,), "F32"))
            found.append(parameter(part, "weight.nested_quant_map", (256,), "F32"))
        return tuple(found)

    def weight(self, part: Projection, in_features: int, source: "WeightSource") -> "Tensor":
        """Return the values of the codes times the factors of their blocks.

        Raises `ModelError` if the JSON contradicts the tensors.
        """
        from torch.nn.functional import pad

        weight, shape = f"{part.name}.weight", [part.out_features, in_features]
        state = _state(weight, shape, source)
        factors = self._factors(weight, state, source)
        size = state.integer("blocksize", min(_BLOCK_SIZES), max(_BLOCK_SIZES))
        num_weights = part.out_features * in_features
        if size not in _BLOCK_SIZES or -(-num_weights // size) != len(factors):
            raise state.error("blocksize", f"the size of the {len(factors)} blocks that are stored")
        pairs = source.read(weight).flatten()
        pairs = pad((pairs << 4) | (pairs >> 4), (0, len(factors) * size // 2 - len(pairs)))
        table = source.read(f"{weight}.quant_map")
        found = source.dequantize_table(
            part.name, pairs.view(len(factors), -1), table, factors[:, None]
        )
        return found.flatten()[:num_weights].view(shape)

    def _factors(self, weight: str, state: JsonObject, source: "WeightSource") -> "Tensor":
        """Return the factor of each block, [num_blocks] float32."""
        stored = source.read(f"{weight}.absmax")
        if source.stored.get(f"{weight}.nested_absmax") is None:
            return stored
        state.integer("nested_blocksize", _NESTED_SIZE, _NESTED_SIZE)
        scales = source.read(f"{weight}.nested_absmax").repeat_interleave(_NESTED_SIZE)
        values = source.read(f"{weight}.nested_quant_map")[stored.long()]
        return values * scales[: len(stored)] + state.number("nested_offset", -1e30, 1e30)


@dataclass(frozen=True, slots=True)
class BnbInt8(WeightFormat):
    """`weight` [out_features, in_features] int8, and `SCB` [out_features], the value of 127."""

    def parameters(
        self, part: Projection, in_features: int, stored: StoredTensors
    ) -> tuple[Parameter, ...] | None:
        """Return codes, the value of 127, and the memory format if stored."""
        codes = stored.get(f"{part.name}.weight")
        if codes is None or codes.dtype != "I8":
            return None
        shape = (part.out_features, in_features)
        found = [
            parameter(part, "weight", shape, "I8"),
            parameter(part, "SCB", shape[:1]),
        ]
        if stored.get(f"{part.name}.weight_format") is not None:
            found.append(parameter(part, "weight_format", (), "U8"))
        return tuple(found)

    def form(self, part: Projection, stored: StoredTensors) -> CodeForm:
        """Return 8-bit codes with a float32 for each row."""
        return CodeForm(8, None, 4)

    def packed(self, part: Projection, in_features: int, source: "WeightSource") -> "PackedWeight":
        """Return codes and scales; raises `ModelError` for rows in another order."""
        from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

        layout = f"{part.name}.weight_format"
        if source.stored.get(layout) is not None and source.read(layout).item() != 0:
            raise ModelError(
                f"{layout} describes rows that are not stored consecutively; use another version "
                "of the model"
            )
        scales = source.read(f"{part.name}.SCB").to(source.device).float()[:, None] / 127
        codes = source.read(f"{part.name}.weight").to(source.device)
        return PackedWeight(codes, 8, GroupScales(scales), in_features)


def _num_blocks(num_weights: int, weight: str, stored: StoredTensors) -> int:
    """Return the number of blocks: the stored one if a valid block size gives it."""
    possible = [-(-num_weights // size) for size in _BLOCK_SIZES]
    found = stored.get(f"{weight}.absmax")
    is_possible = found is not None and len(found.shape) == 1 and found.shape[0] in possible
    return found.shape[0] if found is not None and is_possible else possible[0]


def _state_name(weight: str, stored: StoredTensors) -> str:
    names = [f"{weight}.{_STATE}{kind}" for kind in _KINDS]
    return next((name for name in names if stored.get(name) is not None), names[0])


def _state_shape(name: str, stored: StoredTensors) -> tuple[int, ...]:
    found = stored.get(name)
    fits = found is not None and len(found.shape) == 1 and found.shape[0] <= _MAX_STATE_BYTES
    return found.shape if found is not None and fits else (_MAX_STATE_BYTES,)


def _state(weight: str, shape: list[int], source: "WeightSource") -> JsonObject:
    """Return the checked JSON description of a matrix."""
    name = _state_name(weight, source.stored)
    state = JsonObject.parse(name, bytes(source.read(name).tolist()))
    if state.get("shape") != shape:
        raise state.error("shape", f"{shape}, as config.json says")
    return state
