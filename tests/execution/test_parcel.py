"""Tensors that go to a device by one copy arrive as they were."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from pagedrun.paged.execution.device import (
    ALIGNMENT,
    Device,
    Place,
    choose_device,
    transfer_packed,
    transferred,
)


@dataclass(frozen=True, slots=True)
class Counting(Device):
    copied: list[Tensor] = field(default_factory=list)

    @property
    def is_asynchronous(self) -> bool:
        return True

    def place(self, tensor: Tensor) -> Tensor:
        self.copied.append(tensor)
        return tensor.clone()


@pytest.fixture
def device() -> Counting:
    host = choose_device("cpu")
    return Counting(host.torch_device, host.kernels, async_scheduling=True)


def tensors() -> list[Tensor]:
    return [
        torch.arange(7),
        torch.tensor([], dtype=torch.int32),
        torch.tensor([[1.5, -2.0], [3.0, 4.25]]),
        torch.tensor([True, False, True]),
        torch.arange(12, dtype=torch.int32).view(3, 4).T,  # not contiguous
        torch.tensor(5),
    ]


def test_they_arrive_by_one_copy_each_where_vectors_may_be_loaded(device: Counting) -> None:
    there = transfer_packed(device, tensors())
    assert len(device.copied) == 1
    first = there[0].data_ptr()
    for given, got in zip(tensors(), there, strict=True):
        assert got.dtype == given.dtype
        assert torch.equal(got, given)
        assert not given.numel() or (got.data_ptr() - first) % ALIGNMENT == 0


def test_nothing_to_copy_is_no_copy_of_something(device: Counting) -> None:
    (there,) = transfer_packed(device, [torch.zeros(0, 3)])
    assert there.shape == (0, 3)


def test_what_is_made_of_them_has_each_in_its_place(device: Counting) -> None:
    def placed(place: Place) -> dict[str, Tensor]:
        return {str(index): place(each) for index, each in enumerate(tensors())}

    for where in (device, replace(choose_device("cpu"), async_scheduling=True)):
        there = transferred(where, placed)
        assert all(torch.equal(there[str(i)], each) for i, each in enumerate(tensors()))
    assert len(device.copied) == 1
