from typing import Any

import numba
import numpy as np
import torch

from pagedrun.kernels.cpu.bfloat16 import as_array, from_float32, to_float32


@numba.njit  # type: ignore[untyped-decorator]
def widen(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        target[i] = to_float32(source[i])


@numba.njit  # type: ignore[untyped-decorator]
def narrow(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        target[i] = from_float32(source[i], target)


def test_every_bfloat16_widens_to_its_value() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    wide = torch.empty(2**16)
    widen(as_array(every), as_array(wide))
    assert torch.equal(wide.view(torch.int32), every.float().view(torch.int32))


def test_rounds_as_torch_does() -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (300_000,), generator=generator).int()
    # Every exponent and sign with the ties, and what lies next to them.
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32) << 16
    near_ties = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    wide = torch.cat([bits, *near_ties]).view(torch.float32)
    out = torch.empty(len(wide), dtype=torch.bfloat16)
    narrow(as_array(wide), as_array(out))
    expected = wide.bfloat16()
    number = ~expected.isnan()
    assert torch.equal(out.isnan(), ~number)
    assert torch.equal(out[number].view(torch.int16), expected[number].view(torch.int16))


def test_arrays_are_the_memory_of_the_tensor() -> None:
    tensor = torch.zeros(3, dtype=torch.bfloat16)
    as_array(tensor)[1] = np.uint16(0x3F80)
    assert tensor.tolist() == [0.0, 1.0, 0.0]
