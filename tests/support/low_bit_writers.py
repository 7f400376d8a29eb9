"""Writers of weights in two, four or eight bits, packed into words."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support.quantized_checkpoints import Stored, Writer

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Pack unsigned codes [rows, columns] along their columns, filled up with zeros."""
    order = order or tuple(range(32 // bits))
    fill = -codes.shape[1] % len(order)
    codes = torch.nn.functional.pad(codes.long(), (0, fill))
    words = sum(codes[:, element :: len(order)] << (i * bits) for i, element in enumerate(order))
    assert isinstance(words, Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


@dataclass(frozen=True)
class Rounded:
    """Codes of a matrix [rows, columns]; scales and zero points [rows, groups], all unsigned."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    group_of: Tensor

    @classmethod
    def of(
        cls, weight: Tensor, bits: int, size: int, *, symmetric: bool, shuffled: bool = False
    ) -> "Rounded":
        """Round to the nearest code; `size` 0 makes one group; `shuffled` groups lie scattered."""
        columns = weight.shape[1]
        group_of = torch.arange(columns) // (size or columns)
        if shuffled:
            order = torch.randperm(columns, generator=torch.Generator().manual_seed(3))
            group_of = group_of[order]
        largest, scales, zeros = 2**bits - 1, [], []
        for group in range(int(group_of.max()) + 1):
            of_group = weight[:, group_of == group]
            low, high = of_group.amin(1).clamp(max=0), of_group.amax(1).clamp(min=0)
            if symmetric:
                high = of_group.abs().amax(1)
                low = -high
            scale = ((high - low) / largest).half().float()  # as it is stored
            scales.append(scale)
            middle = torch.full_like(scale, 2 ** (bits - 1))
            zeros.append(middle if symmetric else (-low / scale).round().clamp(0, largest))
        scale, zero = torch.stack(scales, 1), torch.stack(zeros, 1)
        codes = (weight / scale[:, group_of] + zero[:, group_of]).round().clamp(0, largest)
        return cls(codes.int(), scale, zero.int(), group_of)

    @property
    def weights(self) -> Tensor:
        return (self.codes - self.zeros[:, self.group_of]).float() * self.scales[:, self.group_of]


@dataclass(frozen=True)
class AwqWriter:
    size: int = 32

    def __call__(self, weight: Tensor) -> Stored:
        rounded = Rounded.of(weight, 4, self.size, symmetric=False)
        return {
            "qweight": packed(rounded.codes.T, 4, AWQ_ORDER),
            "qzeros": packed(rounded.zeros.T, 4, AWQ_ORDER),
            "scales": rounded.scales.T.half(),
        }, rounded.weights


@dataclass(frozen=True)
class GptqWriter:
    bits: int = 4
    size: int = 32
    symmetric: bool = True
    less_one: bool = True
    shuffled: bool = False
    has_groups: bool = True

    def __call__(self, weight: Tensor) -> Stored:
        rounded = Rounded.of(
            weight, self.bits, self.size, symmetric=self.symmetric, shuffled=self.shuffled
        )
        zeros = (rounded.zeros - int(self.less_one)) % 2**self.bits
        stored = {
            "qweight": packed(rounded.codes, self.bits).T,
            "qzeros": packed(zeros.T, self.bits),
            "scales": rounded.scales.T.half(),
        }
        if self.has_groups:
            stored["g_idx"] = rounded.group_of.int()
        return stored, rounded.weights


@dataclass(frozen=True)
class PackWriter:
    bits: int = 4
    size: int = 32
    symmetric: bool = True
    shuffled: bool = False

    def __call__(self, weight: Tensor) -> Stored:
        rounded = Rounded.of(
            weight, self.bits, self.size, symmetric=self.symmetric, shuffled=self.shuffled
        )
        stored = {
            "weight_packed": packed(rounded.codes, self.bits),
            "weight_scale": rounded.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not self.symmetric:
            stored["weight_zero_point"] = packed(rounded.zeros.T, self.bits).T
        if self.shuffled:
            stored["weight_g_idx"] = rounded.group_of.int()
        return stored, rounded.weights


Form = tuple[dict[str, Any], Writer]


def awq(size: int, **fields: Any) -> Form:
    quantization = {"quant_method": "awq", "bits": 4, "group_size": size or -1, "version": "gemm"}
    return {**quantization, "zero_point": True, **fields}, AwqWriter(size)


def gptq(bits: int, size: int, layout: str = "gptq", **writer: Any) -> Form:
    """`layout` is the label; what is stored is that of the writer."""
    made = GptqWriter(bits, size, **writer)
    quantization = {"quant_method": "gptq", "bits": bits, "group_size": size or -1}
    return {**quantization, "sym": made.symmetric, "checkpoint_format": layout}, made


def compressed(layout: str, *weights: dict[str, Any], **fields: Any) -> dict[str, Any]:
    groups = {
        f"group_{i}": {"targets": ["Linear"], "weights": each} for i, each in enumerate(weights)
    }
    quantization = {"quant_method": "compressed-tensors", "format": layout}
    return {**quantization, "config_groups": groups, "quantization_status": "compressed", **fields}


def pack(bits: int, size: int, **writer: Any) -> Form:
    made = PackWriter(bits, size, **writer)
    weights = {"num_bits": bits, "type": "int", "symmetric": made.symmetric}
    weights["strategy"] = "group" if size else "channel"
    if size:
        weights["group_size"] = size
    return compressed("pack-quantized", weights), made


def int8(strategy: str, **weights: Any) -> dict[str, Any]:
    fields = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, **weights}
    return compressed("int-quantized", fields)


def float8(strategy: str, **weights: Any) -> dict[str, Any]:
    fields = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, **weights}
    return compressed("float-quantized", fields)
