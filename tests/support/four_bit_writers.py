"""Writers of weights in four bits each that stand for numbers of a table."""

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedrun.kernels.quantized_form import E2M1
from tests.support.quantized_checkpoints import Stored

# Quantiles of a normal distribution, as bitsandbytes writes them beside the codes.
NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
E4M3 = torch.float8_e4m3fn


def nearest(values: Tensor, table: tuple[float, ...]) -> Tensor:
    """Return the code of each value."""
    return (values[..., None] - torch.tensor(table)).abs().argmin(-1)


def in_pairs(codes: Tensor, *, high_first: bool = False) -> Tensor:
    first, second = codes[..., 0::2], codes[..., 1::2]
    low, high = (second, first) if high_first else (first, second)
    return (low | high << 4).to(torch.uint8)


@dataclass(frozen=True)
class Nvfp4Writer:
    """As compressed-tensors writes it, or modelopt: the scale of all divides, or multiplies."""

    modelopt: bool = False

    def __call__(self, weight: Tensor) -> Stored:
        groups = torch.unflatten(weight, 1, (-1, 16))
        largest = groups.abs().amax(-1)
        whole = largest.max() / 6 / 448
        scales = (largest / 6 / whole).to(E4M3)
        factors = scales.float() * whole
        codes = nearest(groups / factors[..., None], E2M1)
        stored = {"weight_scale": scales}
        if self.modelopt:
            stored |= {"weight_scale_2": whole, "weight": in_pairs(codes).flatten(1)}
        else:
            divisor = (1 / whole)[None]
            factors = scales.float() / divisor
            stored |= {"weight_global_scale": divisor, "weight_packed": in_pairs(codes).flatten(1)}
        return stored, (torch.tensor(E2M1)[codes] * factors[..., None]).flatten(1)


def mxfp4(weight: Tensor) -> Stored:
    groups = torch.unflatten(weight, 1, (-1, 32))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    codes = nearest(groups / 2 ** exponents[..., None], E2M1)
    stored = {"weight_packed": in_pairs(codes).flatten(1)}
    stored["weight_scale"] = (exponents + 127).to(torch.uint8)
    return stored, (torch.tensor(E2M1)[codes] * 2 ** exponents[..., None]).flatten(1)


@dataclass(frozen=True)
class BitsAndBytesWriter:
    """Blocks of neighbours, whatever row they are in."""

    kind: str = "nf4"
    size: int = 64
    nested: bool = False

    def __call__(self, weight: Tensor) -> Stored:
        table = NF4 if self.kind == "nf4" else tuple(each / 6 for each in E2M1)
        num_weights = weight.numel()
        flat = torch.nn.functional.pad(weight.flatten(), (0, -num_weights % self.size))
        blocks = flat.view(-1, self.size)
        factors, state = blocks.abs().amax(1), {"blocksize": self.size, "quant_type": self.kind}
        stored: dict[str, Tensor] = {}
        if self.nested:
            offset = float(factors.mean())
            padded = torch.nn.functional.pad(factors - offset, (0, -len(factors) % 256))
            scales = padded.view(-1, 256).abs().amax(1)
            places = torch.linspace(-1, 1, 256)
            of_block = scales.repeat_interleave(256)[: len(factors)]
            codes = nearest((factors - offset) / of_block, tuple(places.tolist()))
            factors = places[codes] * of_block + offset
            state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
            stored["weight.absmax"] = codes.to(torch.uint8)
            stored |= {"weight.nested_absmax": scales, "weight.nested_quant_map": places}
        else:
            stored["weight.absmax"] = factors
        codes = nearest(blocks / factors[:, None], table)
        state["shape"] = list(weight.shape)
        text = json.dumps(state | {"dtype": "bfloat16"}).encode()
        kind = f"weight.quant_state.bitsandbytes__{self.kind}"
        stored[kind] = torch.tensor(list(text), dtype=torch.uint8)
        stored["weight.quant_map"] = torch.tensor(table)
        of_pairs = in_pairs(codes, high_first=True).flatten()[: -(-num_weights // 2)]
        stored["weight"] = of_pairs[:, None]
        means = (torch.tensor(table)[codes] * factors[:, None]).flatten()[:num_weights]
        return stored, means.view(weight.shape)


def scb(weight: Tensor) -> Stored:
    """Rows of eight bits, as bitsandbytes writes them."""
    largest = weight.abs().amax(1)
    codes = (weight / largest[:, None] * 127).round().to(torch.int8)
    layout = torch.tensor(0, dtype=torch.uint8)
    weights = codes.float() * (largest[:, None] / 127)
    return {"weight": codes, "SCB": largest, "weight_format": layout}, weights
