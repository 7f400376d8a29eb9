"""What an emulated program sees of memory: pointers, shared memory, barriers and boxes."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.kernels.gpu.emulated.turns import Fault


@dataclass(frozen=True, slots=True)
class Pointer:
    """Elements of a tensor's storage, at one place or at a tensor of places."""

    memory: Tensor
    place: Any = 0

    @classmethod
    def of(cls, tensor: Tensor) -> "Pointer":
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        return cls(tensor.as_strided((size,), (1,), 0), tensor.storage_offset())

    def __add__(self, places: Any) -> "Pointer":
        return Pointer(self.memory, self.place + places)

    def load(self, mask: Tensor | None, other: float | None) -> Tensor:
        places = self._places(mask)
        loaded = self.memory[places]
        if mask is None:
            return loaded
        assert other is not None, "what is not loaded would be anything"
        return torch.where(mask, loaded, other).to(loaded.dtype)

    def store(self, value: Tensor, mask: Tensor | None) -> None:
        places = self._places(mask)
        mask = torch.ones_like(places, dtype=torch.bool) if mask is None else mask
        mask = mask.broadcast_to(places.shape)
        self.memory[places[mask]] = value.to(self.memory.dtype).broadcast_to(places.shape)[mask]

    def _places(self, mask: Tensor | None) -> Tensor:
        """Return the places, those that are masked inside too; Fault where one is outside."""
        places = torch.as_tensor(self.place, dtype=torch.int64)
        if mask is not None:
            places = torch.where(mask, places, 0)
        if ((places < 0) | (places >= len(self.memory))).any():
            raise Fault("a pointer outside of its tensor")
        return places


class Stage:
    """A part of shared memory that is filled and read as one. Unwritten memory holds NaN."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.data = torch.full(shape, float("nan"), dtype=dtype)
        self.being_filled = self.being_read = 0
        self.unfenced = False  # stored in a way that products see only after a fence

    def begin_copy(self) -> None:
        if self.being_read:
            raise Fault("a copy into a stage that a product reads")
        if self.being_filled:
            raise Fault("two copies into a stage")
        self.being_filled += 1
        self.data = torch.full_like(self.data, float("nan"))

    def land(self, values: Tensor) -> None:
        self.being_filled -= 1
        self.data = values

    def store(self, values: Tensor) -> None:
        if self.being_read or self.being_filled:
            raise Fault("a store into a stage that is read or filled")
        if values.shape != self.data.shape or values.dtype != self.data.dtype:
            raise Fault("a store of another shape or type")
        self.data, self.unfenced = values.clone(), True

    def begin_read(self) -> None:
        if self.being_filled:
            raise Fault("a product reads a stage that is being filled")
        if self.unfenced:
            raise Fault("a product reads what was stored, without a fence between")
        self.being_read += 1

    def end_read(self) -> None:
        self.being_read -= 1


@dataclass(frozen=True, slots=True)
class View:
    """A stage, or its transpose."""

    stage: Stage
    is_transposed: bool = False

    @property
    def data(self) -> Tensor:
        return self.stage.data.T if self.is_transposed else self.stage.data

    def permute(self, order: tuple[int, ...]) -> "View":
        assert tuple(order) == (1, 0)
        return View(self.stage, not self.is_transposed)

    def store(self, values: Tensor) -> None:
        self.stage.store(values)


@dataclass(slots=True)
class Shared:
    """Shared memory: stages, or barriers where its elements are 64-bit integers."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        count, rest = self.shape[0], self.shape[1:]
        is_barrier = self.dtype is torch.int64
        self.parts = [Barrier() if is_barrier else Stage(rest, self.dtype) for _ in range(count)]

    def index(self, index: Any) -> Any:
        if not 0 <= int(index) < len(self.parts):
            raise Fault("an index outside of shared memory")
        part = self.parts[int(index)]
        return part if isinstance(part, Barrier) else View(part)


class Barrier:
    """Counts arrivals and bytes; when none is awaited any more, its next phase begins."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.pending = self.bytes = self.phase = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def arrive(self, count: int = 1, num_bytes: int = 0) -> None:
        self._assert_begun()
        if count > self.pending:
            raise Fault("more arrivals than a barrier waits for")
        self.pending -= count
        self.bytes += num_bytes
        self._turn_over()

    def land(self, num_bytes: int) -> None:
        self._assert_begun()
        self.bytes -= num_bytes
        self._turn_over()

    def is_past(self, parity: Any) -> bool:
        """Whether the phase of this parity is complete: the one that runs has the other."""
        self._assert_begun()
        return (self.phase & 1) != int(parity)

    def _turn_over(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            assert self.count is not None
            self.phase, self.pending = self.phase + 1, self.count

    def _assert_begun(self) -> None:
        if self.count is None:
            raise Fault("a barrier that was not initialised")


@dataclass(frozen=True, slots=True)
class BoxType:
    nbytes: int


@dataclass(frozen=True, slots=True)
class Boxes:
    """A matrix in memory that copies read boxes of; see Triton's TensorDescriptor."""

    matrix: Tensor
    shape: tuple[int, ...]
    layout: Any

    @property
    def block_type(self) -> BoxType:
        rows, columns = self.shape
        return BoxType(rows * columns * self.matrix.element_size())

    def read(self, row: Any, column: Any) -> Tensor:
        first, rows = int(row), self.shape[0]
        if int(column) != 0 or not 0 <= first <= len(self.matrix) - rows:
            raise Fault("a box outside of its matrix")
        return self.matrix[first : first + rows].clone()
