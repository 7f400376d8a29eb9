import torch
import triton
import triton.language as tl

from pagedrun.kernels.gpu.kv_cache import encode


# Triton 3.6 compiles no annotation but its own.
@triton.jit  # type: ignore[untyped-decorator]
def _encode(x, codes, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, SIZE)
    ones = tl.full([SIZE], 1.0, tl.float32)
    tl.store(codes + i, encode(tl.load(x + i), ones, codes.dtype.element_ty))


def test_float8_codes_are_those_of_torch(gpu_device: torch.device) -> None:
    numbers = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (numbers[1:] + numbers[:-1]) / 2
    around = torch.cat([numbers, halves, halves * (1 + 2**-20), halves * (1 - 2**-20)])
    x = torch.cat([around, -around, torch.randn(2048 - 2 * len(around)) * 60])
    codes = torch.empty(2048, dtype=torch.uint8, device=gpu_device)
    _encode[(1,)](x.to(gpu_device), codes, 2048)
    assert torch.equal(codes.cpu(), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_int8_codes_round_to_even(gpu_device: torch.device) -> None:
    x = torch.arange(-254, 255) / 2
    x = torch.cat([x, torch.rand(1024 - len(x)) * 254 - 127])
    codes = torch.empty(1024, dtype=torch.int8, device=gpu_device)
    _encode[(1,)](x.to(gpu_device), codes, 1024)
    assert torch.equal(codes.cpu(), x.round().to(torch.int8))
