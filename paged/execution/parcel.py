"""Parcel: host tensors that go to a device by one copy."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

import torch
from torch import Tensor

from pagedrun.paged.execution.devices.device import Device

T = TypeVar("T")
Place = Callable[[Tensor], Tensor]
ALIGNMENT = 16  # bytes: what vector loads of kernels want, and more than any number takes


def placed_together(device: Device, placed: Callable[[Place], T]) -> T:
    """Return what `placed` makes of host tensors once they lie on the device, copied all at once.

    `placed` calls what it is given for each of them, in the same order whenever it is called.
    """
    if not device.is_asynchronous:  # a copy is no call to a driver there
        return placed(device.place)
    found: list[Tensor] = []

    def find(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    placed(find)
    there = iter(place_all(device, found))
    return placed(lambda _: next(there))


def place_all(device: Device, tensors: Seq[Tensor]) -> list[Tensor]:
    """Return host tensors on the device; their memory there is one allocation, filled by one copy.

    Each begins at a multiple of `ALIGNMENT` bytes.
    """
    ends, total = [], 0
    for each in tensors:
        total = -(-total // ALIGNMENT) * ALIGNMENT + each.nbytes
        ends.append(total)
    if not total:
        return [device.place(each) for each in tensors]
    packed = torch.empty(total, dtype=torch.uint8)
    bytes_of = packed.numpy()  # which is filled with fewer calls than a tensor
    for each, end in zip(tensors, ends, strict=True):
        if each.nbytes:
            flat = each.reshape(-1).view(torch.uint8).numpy()
            bytes_of[end - each.nbytes : end] = flat
    there = device.place(packed)
    return [_part(there, each, end) for each, end in zip(tensors, ends, strict=True)]


def _part(there: Tensor, like: Tensor, end: int) -> Tensor:
    """Return the part of a parcel that ends there, in shape and type of what was put in."""
    if not like.nbytes:  # as many are: who comes, who goes, who needs a block
        return torch.empty(like.shape, dtype=like.dtype, device=there.device)
    part = there[end - like.nbytes : end].view(like.dtype)
    return part if like.dim() == 1 else part.view(like.shape)
