"""Recordings of a step's kernels and torch operations, replayed with the same arguments.

With few rows the host spends more time between kernels than in them: allocations, arrays of
tensors, numbers of threads. All of this depends on shapes alone. A `Recorder` computes a step once
and notes each call; `Recording.replay` makes the same calls again, on the same memory, after the
inputs have been overwritten. It is what a CUDA graph is to a GPU.

Python between the calls is not repeated, so a step can be replayed only if it reads no values of
its inputs there. Code that does calls `values_are_read`.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Result = TypeVar("Result")
_CURRENT: ContextVar["Recorder | None"] = ContextVar("recorder", default=None)
_NOTHING = nullcontext()
_ALIGNMENT = 64
_ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)
# Their tag is that of an index by a mask, which is looked for instead.
_INDEXING = frozenset({torch.ops.aten.index.Tensor})
_UNREPEATABLE = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.nondeterministic_seeded,
    }
)


def current_recorder() -> "Recorder | None":
    """Return the recorder of the step that is being recorded, None if none is."""
    return _CURRENT.get()


def unrecorded() -> AbstractContextManager[object]:
    """Return a context in which operations of torch are not noted, for those without effect."""
    return _NOTHING if _CURRENT.get() is None else torch._C._DisableTorchDispatch()


def values_are_read() -> None:
    """Declare that the host reads values that differ between steps: they cannot be replayed."""
    recorder = _CURRENT.get()
    if recorder is not None:
        recorder.refuse()


class Recording(Generic[Result]):
    """Calls of a step, computed once while they were noted.

    result: of the step; each replay writes it to the same memory. can_replay: False if values
    decide the calls.
    """

    def __init__(self, step: Callable[[], Result]) -> None:
        recorder = Recorder()
        token = _CURRENT.set(recorder)
        try:
            with recorder:
                self.result = step()
        finally:
            _CURRENT.reset(token)
        self.can_replay = recorder.can_replay
        self._calls = recorder.calls

    def replay(self) -> Result:
        """Repeat the calls; only if `can_replay`."""
        for call, arguments in self._calls:
            call(*arguments)
        return self.result


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes calls while a step is computed, with results in memory of its own.

    calls: functions with their arguments. These refer to memory and never to the tensors of the
    step: memory of a result is used again once its tensor is gone, as by an allocator, and a replay
    has the same order. After a refusal nothing is noted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.can_replay = True
        self._memory = _Memory()
        self._num_threads: int | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: dynamo compiles nothing here, and keeping it out takes a third of the time
        of a recording."""
        return False

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a kernel, note it, and return its result."""
        result = function(*arguments)
        if result is None:
            self.note(function, arguments)
        elif isinstance(result, np.ndarray):
            self.note(_write_array, (result, function, arguments))
        else:
            self.refuse()
        return result

    def refuse(self) -> None:
        """Declare that the step cannot be replayed."""
        self.can_replay = False
        self.calls.clear()

    def note(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Note a call that was made."""
        if self.can_replay:
            self.calls.append((function, self._fixed(arguments)))

    def note_threads(self, function: Callable[[int], None], num_threads: int) -> None:
        """Note that `function` set the number of threads of further kernels, if it differs."""
        if num_threads != self._num_threads:
            self._num_threads = num_threads
            self.note(function, (num_threads,))

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        """Compute an operation of torch and note it."""
        keywords = keywords or {}
        result = function(*arguments, **keywords)
        if not function._schema.is_mutable and _is_view(result, arguments):
            return result
        if function in _ALLOCATIONS:
            return self._owned(result)
        if not _UNREPEATABLE.isdisjoint(function.tags) and not _is_plain_index(function, arguments):
            self.refuse()
            return result
        operation = partial(function, **self._fixed(keywords)) if keywords else function
        if function._schema.is_mutable:
            self.note(operation, tuple(arguments))
            return result
        if isinstance(result, Tensor):
            own = self._own(result)
            self.note(_write_tensor, (own, operation, tuple(arguments)))
            return own
        self.refuse()  # several tensors, or a value: no model needs them
        return result

    def _own(self, tensor: Tensor) -> Tensor:
        """Return a copy in the recorder's memory."""
        own = self._owned(tensor)
        return own if own is tensor else own.copy_(tensor)

    def _owned(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same shape and dtype in the recorder's memory."""
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return tensor
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        owned = torch.from_numpy(self._memory.take((reach + 1) * tensor.element_size()))
        return owned.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _fixed(self, value: Any) -> Any:
        """Return an argument that refers to the recorder's memory itself, without its owner."""
        if isinstance(value, np.ndarray):
            return self._memory.fixed_array(value)
        if isinstance(value, Tensor):
            return self._memory.fixed_tensor(value)
        if isinstance(value, dict):
            return {key: self._fixed(each) for key, each in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._fixed, value))
        if isinstance(value, tuple | list):
            return type(value)(map(self._fixed, value))
        return value


def _is_view(result: Any, arguments: Any) -> bool:
    """Return whether an operation returned memory of its first argument.

    The schema says only that it may, as for `reshape` and `to`.
    """
    if isinstance(result, tuple | list):
        return bool(result) and _is_view(result[0], arguments)
    if not isinstance(result, Tensor) or not arguments or not isinstance(arguments[0], Tensor):
        return False
    return result is arguments[0] or _storage(result) == _storage(arguments[0])


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _is_plain_index(function: Any, arguments: Any) -> bool:
    """Return whether an operation indexes by integers, so that shapes decide that of its result."""
    if function not in _INDEXING:
        return False
    return all(each is None or each.dtype not in (torch.bool, torch.uint8) for each in arguments[1])


class _Memory:
    """Blocks of memory for results, kept as long as a recording.

    A block is free again when nothing refers to the array that `take` returned.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, NDArray[np.uint8]] = {}  # by address
        self._addresses: list[int] = []  # in order
        self._free: dict[int, list[int]] = {}  # addresses by size

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return `num_bytes` bytes that nothing else uses."""
        size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        free = self._free.setdefault(size, [])
        address = free.pop() if free else self._add(size)
        taken = self._blocks[address][:num_bytes]
        weakref.finalize(taken, free.append, address).atexit = False
        return taken

    def fixed_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array as part of its block, unless it lies in none."""
        address = _address(array)
        block = self._block_of(address)
        if block is None or array.size == 0:
            return array
        offset = address - _address(block)
        return np.ndarray(array.shape, array.dtype, block, offset, array.strides)

    def fixed_tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor as part of its block, unless it lies in none."""
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return tensor
        address = tensor.data_ptr()
        block = self._block_of(address)
        if block is None:
            return tensor
        offset = (address - _address(block)) // tensor.element_size()
        whole = torch.from_numpy(block).view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), offset)

    def _add(self, size: int) -> int:
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -_address(memory) % _ALIGNMENT
        block = memory[start : start + size]
        address = _address(block)
        self._blocks[address] = block
        self._addresses.insert(bisect_right(self._addresses, address), address)
        return address

    def _block_of(self, address: int) -> NDArray[np.uint8] | None:
        index = bisect_right(self._addresses, address) - 1
        if index < 0:
            return None
        block = self._blocks[self._addresses[index]]
        return block if address < _address(block) + len(block) else None


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])  # faster than `ctypes`


def _write_array(result: NDArray[Any], function: Callable[..., Any], arguments: Any) -> None:
    np.copyto(result, function(*arguments))


def _write_tensor(result: Tensor, function: Callable[..., Any], arguments: Any) -> None:
    result.copy_(function(*arguments))
