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
    spans = [slice(end - each.nbytes, end) for each, end in zip(tensors, ends, strict=True)]
    for each, span in zip(tensors, spans, strict=True):
        packed[span].view(each.dtype).view(each.shape).copy_(each)
    there = device.place(packed)
    return [
        there[span].view(each.dtype).view(each.shape)
        for each, span in zip(tensors, spans, strict=True)
    ]
