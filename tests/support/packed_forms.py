"""Quantized weights in every form, random, in the layout of kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight


def random(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def codes(low: int, high: int, out: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(low, high, (out, columns), generator=generator, dtype=torch.int8)


def halves(out: int, groups: int) -> GroupScales:
    return GroupScales((random(out, groups, seed=2) / 50 + 0.001).half())


def six_bits(out: int, groups: int, seed: int) -> GroupScales:
    values = (random(out, groups, seed=seed) * 64).to(torch.uint8)
    return GroupScales(values, (random(out, groups // 8, seed=seed + 1) / 1000).half())


def q4_0(out: int, columns: int) -> PackedWeight:
    return PackedWeight(codes(-8, 8, out, columns), 4, halves(out, -(-columns // 32)), 32)


def q4_1(out: int, columns: int) -> PackedWeight:
    scales = halves(out, columns // 32)
    minima = GroupScales((random(out, columns // 32, seed=9) / 10).half())
    return PackedWeight(codes(0, 16, out, columns), 4, scales, 32, minima=minima)


def awq(out: int, columns: int) -> PackedWeight:
    zeros = codes(-8, 8, out, -(-columns // 128))
    scales = halves(out, -(-columns // 128))
    return PackedWeight(codes(-8, 8, out, columns), 4, scales, 128, zeros=zeros)


def rows_of_four_bits(out: int, columns: int) -> PackedWeight:
    scales = GroupScales((random(out, 1, seed=3) / 50).bfloat16())
    return PackedWeight(codes(-8, 8, out, columns), 4, scales, columns)


def two_bits(out: int, columns: int) -> PackedWeight:
    return PackedWeight(codes(-2, 2, out, columns), 2, halves(out, columns // 32), 32)


def q4_k(out: int, columns: int) -> PackedWeight:
    scales, minima = (six_bits(out, columns // 32, seed) for seed in (4, 6))
    return PackedWeight(codes(0, 16, out, columns), 4, scales, 32, minima=minima)


def q5_0(out: int, columns: int) -> PackedWeight:
    return PackedWeight(codes(-16, 16, out, columns), 5, halves(out, columns // 32), 32)


def q5_k(out: int, columns: int) -> PackedWeight:
    scales, minima = (six_bits(out, columns // 32, seed) for seed in (4, 6))
    return PackedWeight(codes(0, 32, out, columns), 5, scales, 32, minima=minima)


def q6_k(out: int, columns: int) -> PackedWeight:
    factors = (random(out, columns // 256, seed=5) / 1000).half()
    scales = GroupScales(codes(-128, 127, out, columns // 16), factors)
    return PackedWeight(codes(-32, 32, out, columns), 6, scales, 16)


def q8_0(out: int, columns: int) -> PackedWeight:
    return PackedWeight(codes(-128, 127, out, columns), 8, halves(out, -(-columns // 32)), 32)


def int8_rows(out: int, columns: int) -> PackedWeight:
    scales = GroupScales(random(out, 1, seed=3) / 500)
    return PackedWeight(codes(-128, 127, out, columns), 8, scales, columns)


def float8(out: int, columns: int) -> PackedWeight:
    """Every code, denormal ones too; a scale for blocks of 48 rows and 128 columns."""
    bits = torch.arange(out * columns).view(out, columns) * 7 % 256
    bits[(bits & 0x7F) == 0x7F] = 0
    scales = GroupScales(random(-(-out // 48), -(-columns // 128), seed=3) / 500)
    return PackedWeight(bits.byte().view(torch.float8_e4m3fn), 8, scales, 128, 48)


def mxfp4(out: int, columns: int) -> PackedWeight:
    """Floats of four bits with powers of two, the least of all among them."""
    exponents = codes(110, 127, out, -(-columns // 32)).byte()
    exponents[0, 0] = 0
    scales = GroupScales(exponents.view(torch.float8_e8m0fnu))
    return PackedWeight(codes(0, 16, out, columns).byte(), 4, scales, 32)


def nvfp4(out: int, columns: int) -> PackedWeight:
    scales = GroupScales(random(out, -(-columns // 16), seed=3) / 50)
    return PackedWeight(codes(0, 16, out, columns).byte(), 4, scales, 16)


def q8_with_zeros(out: int, columns: int) -> PackedWeight:
    scales = GroupScales(random(out, columns // 64, seed=3) / 500)
    zeros = codes(-128, 127, out, columns // 64)
    return PackedWeight(codes(-128, 127, out, columns), 8, scales, 64, zeros=zeros)


Form = Callable[[int, int], PackedWeight]
# Those that CPUs hold as well.
FORMS: dict[str, Form] = {
    each.__name__: each
    for each in (
        *(q4_0, q4_1, awq, rows_of_four_bits, two_bits, q4_k),
        *(q5_0, q5_k, q6_k, q8_0, int8_rows, float8),
    )
}
GPU_FORMS: dict[str, Form] = {**FORMS, "mxfp4": mxfp4, "nvfp4": nvfp4, "zeros": q8_with_zeros}
# A kernel for each takes seconds to compile. These have codes of each width, scales of their own
# and of superblocks, minima and zeros.
USUAL_FORMS = ("q4_0", "q4_k", "awq", "q6_k", "q8_0", "float8")
