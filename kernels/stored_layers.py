"""Packed layers as facts and arrays, so that a file can hold them and memory be shared.

A layer is taken apart by Python's copy protocol (`__getstate__`, `__setstate__`): numbers and texts
become JSON, arrays and tensors are numbered. Restoring puts it together over other arrays, which
are used in place, in the memory of the host or of a device. A file names classes, and only those of
a given list are built.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]


class ArraySpec(NamedTuple):
    """Shape and dtype of an array or a tensor; dtype: NumPy's name, or "torch." and torch's."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements."""
        of_torch = self.dtype.startswith("torch.")
        kind = _torch_dtype(self.dtype) if of_torch else np.dtype(self.dtype)
        return int(np.prod(self.shape, dtype=np.int64)) * kind.itemsize

    def over(self, memory: Tensor) -> "NDArray[Any] | Tensor":
        """Return the array or tensor in `memory`, [num_bytes] uint8; an array on the host only."""
        if self.dtype.startswith("torch."):
            dtype = _torch_dtype(self.dtype)
            if not self.num_bytes:
                return torch.empty(self.shape, dtype=dtype, device=memory.device)
            return memory.view(dtype).view(self.shape)
        return memory.numpy().view(self.dtype).reshape(self.shape)


class StoredLayer(NamedTuple):
    """A layer's JSON description, and the arrays that it numbers."""

    description: Any
    arrays: tuple[ArraySpec, ...]


@runtime_checkable
class Refilled(Protocol):
    """Layer that computes on a copy of an array, in memory that a library owns."""

    stored: Bytes  # of the array, in place

    @property
    def is_filled(self) -> bool:
        """True if the copy was made of this array last."""
        ...

    def refill(self) -> None:
        """Copy the array again, after its memory was written."""
        ...

    def share(self, other: "Refilled") -> bool:
        """Compute on the copy of another layer from now on, and return True, if it has the same
        shape; each must be refilled once the other was."""
        ...


@runtime_checkable
class OfExperts(Protocol):
    """Layer of many experts, of which each has arrays of its own."""

    num_experts: int

    def arrays_of(self, expert: int) -> Sequence[Bytes]:
        """Return the bytes that only this expert needs, in place."""
        ...


def take_apart(layer: object, classes: Iterable[type]) -> tuple[StoredLayer, list[Bytes]]:
    """Return a layer as it is stored, and the bytes of its arrays, in place where possible.

    classes: those that the layer consists of. Raises `TypeError` for anything else.
    """
    parts = _Parts(frozenset(classes))
    description = parts.described(layer)
    return StoredLayer(description, tuple(parts.specs)), parts.arrays


def put_together(
    stored: StoredLayer, memory: Sequence[Tensor], classes: Iterable[type]
) -> tuple[Any, list[Refilled]]:
    """Return a layer over the arrays in `memory`, and its parts to refill when that is written.

    memory: of each array, [num_bytes] uint8. The layer does not read it until it is called. Raises
    `ValueError` for a description that does not fit.
    """
    whole = _Whole(stored, memory, {each.__name__: each for each in classes})
    try:
        return whole.value(stored.description), whole.refilled
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no layer is described like this ({error})") from error


class _Parts:
    """Arrays found so far; each is stored once."""

    def __init__(self, classes: frozenset[type]) -> None:
        self._classes = classes
        self._numbers: dict[int, int] = {}
        self._found: list[object] = []  # alive, so that no other gets an id
        self.specs: list[ArraySpec] = []
        self.arrays: list[Bytes] = []

    def described(self, value: object) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.ndarray | Tensor):
            return {"array": self._number(value)}
        kind = type(value)
        if kind in self._classes:
            if isinstance(value, tuple):
                return {"is": kind.__name__, "items": [self.described(each) for each in value]}
            return {"is": kind.__name__, "state": self.described(_state_of(value))}
        if kind is list:
            assert isinstance(value, list)
            return [self.described(each) for each in value]
        if kind is tuple:
            assert isinstance(value, tuple)
            return {"tuple": [self.described(each) for each in value]}
        if kind is dict:
            assert isinstance(value, dict)
            return {"dict": [[key, self.described(each)] for key, each in value.items()]}
        raise TypeError(f"a stored layer cannot have a {kind.__name__}")

    def _number(self, value: "NDArray[Any] | Tensor") -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.specs)
            self._found.append(value)
            if isinstance(value, Tensor):
                spec = ArraySpec(str(value.dtype), tuple(value.shape))
                flat = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
            else:
                spec = ArraySpec(value.dtype.str, value.shape)
                flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self.specs.append(spec)
            self.arrays.append(flat)
        return self._numbers[id(value)]


class _Whole:
    """Layer that is put together; `refilled`: parts that must be refilled."""

    def __init__(
        self, stored: StoredLayer, memory: Sequence[Tensor], classes: Mapping[str, type]
    ) -> None:
        arrays = zip(stored.arrays, memory, strict=True)
        self._arrays = [spec.over(each) for spec, each in arrays]
        self._classes = classes
        self.refilled: list[Refilled] = []

    def value(self, description: Any) -> Any:
        if isinstance(description, list):
            return [self.value(each) for each in description]
        if not isinstance(description, dict):
            return description
        if "array" in description:
            return self._arrays[description["array"]]
        if "tuple" in description:
            return tuple(self.value(each) for each in description["tuple"])
        if "dict" in description:
            return {key: self.value(each) for key, each in description["dict"]}
        kind: Any = self._classes[description["is"]]
        if "items" in description:
            return kind(*(self.value(each) for each in description["items"]))
        layer = kind.__new__(kind)
        _set_state(layer, self.value(description["state"]))
        if isinstance(layer, Refilled):
            self.refilled.append(layer)
        return layer


def _state_of(value: object) -> object:
    state: Callable[[], object] = value.__getstate__
    return state()


def _set_state(layer: Any, state: Any) -> None:
    if hasattr(layer, "__setstate__"):
        layer.__setstate__(state)
    else:
        layer.__dict__.update(state)


def _torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name}")
    return found
