"""Compiles the kernels of a decoder's first run ahead, in several processes.

Numba compiles one function at a time in a process, hence several. They compile while this process
reads weights, and store the machine code in Numba's cache folder. A kernel that is missing from the
list is compiled when it is first called, as is one whose worker ended too early.
"""

import json
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, NamedTuple

import torch
from numba import types
from numba.core import event

from pagedrun.kernels import token_rows
from pagedrun.kernels.cpu import activations, kv_cache, sampling
from pagedrun.kernels.cpu.attention import decode_attention, group_attention, inputs
from pagedrun.kernels.cpu.attention.inputs import Cache, Relative, SoftmaxNumbers, State, Work
from pagedrun.kernels.cpu.bfloat16 import is_quantized
from pagedrun.kernels.cpu.jit import num_threads
from pagedrun.kernels.cpu.linears import amx_linear, linear
from pagedrun.kernels.cpu.linears.panel_product import (
    RowsOfExperts,
    multiply_panels,
    multiply_row_tiles,
)
from pagedrun.kernels.cpu.norms import _add_rms_norm, _rms_norm
from pagedrun.kernels.cpu.quantized import amx_product
from pagedrun.kernels.cpu.quantized.code_arrays import CodePlaces
from pagedrun.kernels.cpu.quantized.int8_product import multiply_int8
from pagedrun.kernels.cpu.quantized.int8_tiles import multiply_int8_tiles
from pagedrun.kernels.cpu.quantized.panel_codes import panel_type
from pagedrun.kernels.environment.child_process import end_child, start_child
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import CodeForm

MAX_PROCESSES = 3  # the kernel that takes longest is a quarter of all
_COMMAND = [sys.executable, "-P", "-m", "pagedrun.kernels.cpu.compile_worker"]
_ELEMENTS = {
    "float32": types.float32,
    "bfloat16": types.uint16,
    "int8": types.int8,
    "float8_e4m3fn": types.uint8,
}


class PanelKey(NamedTuple):
    """Quantized weights of one kernel: bits and kind of codes, and whether inputs are rounded."""

    num_bits: int
    is_float: bool
    is_shifted: bool
    rounds_inputs: bool

    @classmethod
    def of(cls, form: CodeForm, *, rounds_inputs: bool) -> "PanelKey":
        """Return the key of a form of weights."""
        return cls(form.held_bits, form.is_float, form.has_offsets, rounds_inputs)


class RunKernels(NamedTuple):
    """Key of the kernels that a run calls, and of their argument types.

    Dtypes of the model and of its KV cache, kernel set, activations of its feed-forward layers,
    quantized weights in panels, and whether there are weights that are not quantized.
    """

    dtype: str
    cache_dtype: str
    kernel_set: str
    activations: tuple[str, ...]
    codes: tuple[PanelKey, ...] = ()
    has_plain_linears: bool = True

    def all(self) -> "list[RunKernel]":
        """Return the kernels, in descending order of compile time."""
        return [RunKernel(*each) for each in self._pairs()]

    def _pairs(self) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        model, kept = _ELEMENTS[self.dtype], _ELEMENTS[self.cache_dtype]
        i32, i64, f32 = types.int32, types.int64, types.float32
        yield (
            self._attend(),
            (
                *(i64, i64, i64, _array(model, 3)),
                *[_tuple(Cache, _array(kept, 4), _array(kept, 1), _array(f32, 3))] * 2,
                _tuple(Work, _array(i32, 2), _array(i32, 1), _array(i64, 2), *[_array(i32, 1)] * 2),
                _tuple(SoftmaxNumbers, f32, f32, _array(f32, 1)),
                _tuple(Relative, *[_array(model, 1)] * 2, _array(i64, 2), _array(i32, 1)),
                _tuple(State, _array(f32, 2), _array(f32, 2), _array(f32, 3)),
                _array(model, 3),
            ),
        )
        yield (
            decode_attention._decode,
            (
                *(i64, _array(model, 3), _array(kept, 4), _array(kept, 4), _array(i32, 2)),
                *[_array(i32, 1)] * 2,
                *[_array(f32, 3)] * 2,
                *(f32, f32, _array(f32, 1), i64, _array(i32, 1)),
                *(_array(f32, 2), _array(f32, 2), _array(f32, 3), _array(model, 3)),
            ),
        )
        yield (
            sampling._sample,
            (
                *(_array(model, 2), _array(f32, 1), _array(i32, 1), _array(f32, 1), _array(f32, 1)),
                *[_array(i64, 1)] * 5,
            ),
        )
        given = (
            *(_array(model, 3), _array(f32, 3), _array(i64, 1), _array(i64, 1)),
            *[_array(kept, 4)] * 2,
        )
        norms = *[_array(model, 1)] * 2, f32
        if is_quantized(_array(kept, 4)):
            scales = [_array(f32, 3)] * 2
            last = types.boolean, _array(model, 3)
            yield kv_cache._rotary_store, (*given, *scales, *norms, *last)
        else:
            yield kv_cache._store_lanes, (*given, *norms, _array(model, 3))
        rows = _tuple(RowsOfExperts, _array(i64, 2), _array(i64, 1), i64)
        for key in self.codes:
            given = i64, _array(model, 2), rows, _panel_codes(key)
            last = _array(f32, 1), _array(model, 2)
            if key.rounds_inputs:
                yield multiply_int8, (*given, i64, *last)
                if self.kernel_set == KernelSet.AMX and key.num_bits != 6:  # sums of 16 inputs
                    shapes = _array(types.uint8, 1), i64
                    yield multiply_int8_tiles, (*given, i64, last[0], *shapes, last[1])
            elif not self._is_on_tiles:
                yield multiply_panels, (*given, *last)
        if self._is_on_tiles and not all(each.rounds_inputs for each in self.codes):
            words, shapes = _array(types.uint32, 4), _array(types.uint8, 1)
            given = i64, words, _array(i64, 2), _codes(CodePlaces), _array(f32, 1), shapes
            yield amx_product.multiply_tiles, (*given, _array(model, 2))
            yield amx_product._pack, (_array(model, 2), words)
            yield amx_product._pack_narrow, (_array(model, 2), _array(types.uint32, 2))
        if self._has_fma_linears:
            panels = _array(model, 3)
            yield (
                multiply_panels,
                (i64, _array(model, 2), rows, panels, _array(f32, 1), _array(model, 2)),
            )
            yield (
                multiply_row_tiles,
                (i64, _array(model, 2), panels, _array(f32, 1), _array(model, 2)),
            )
            yield linear.pack_panels, (_array(model, 2), panels)
        if self._is_on_tiles and self.has_plain_linears:
            tiles = _array(types.uint32, 5)
            yield (
                amx_linear.multiply_tiles,
                (i64, _array(model, 5), tiles, _array(f32, 1), _array(model, 2)),
            )
            yield amx_linear._pack_weights, (_array(model, 2), tiles)
            yield amx_linear._pack_rows, (_array(model, 2), _array(model, 5))
        yield inputs.chunk_groups, (*[_array(i32, 1)] * 3, _array(i32, 2), i64)
        yield token_rows._build_tree, (_array(i32, 1), _array(i64, 1))
        rows = (_array(i32, 1), _array(i64, 1), _array(i64, 1), _array(i32, 1))
        yield token_rows._merge_runs, (*rows, _array(i64, 1), _array(i32, 1), i64)
        yield token_rows._sort_runs, (*rows, i64)
        norm = (_array(model, 1), f32, _array(model, 2))
        yield _add_rms_norm, (_array(model, 2), _array(f32, 2), *norm)
        yield inputs.prefix_levels, (*[_array(i32, 1)] * 5, i64)
        yield _rms_norm, (_array(f32, 2), *norm)
        for activation in self.activations:
            yield _ACTIVATIONS[activation], (_array(model, 2), _array(model, 2))
        yield kv_cache._copy, (*[_array(kept, 3)] * 2, *[_array(i64, 1)] * 2)
        walked = (*[_array(i32, 1)] * 2, *[_array(i64, 1)] * 3, *[i64] * 3)
        yield token_rows._walk, walked
        yield token_rows._first_rows, (_array(i32, 1), i64, i64)

    @property
    def _has_fma_linears(self) -> bool:
        """True if linear layers are `FmaLinear`."""
        in_panels = self.dtype == "float32" or self.kernel_set == KernelSet.PORTABLE
        return in_panels and self.has_plain_linears

    @property
    def _is_on_tiles(self) -> bool:
        """True if linear layers are `AmxLinear`, and quantized ones `AmxProducts` if exact."""
        return self.dtype == "bfloat16" and self.kernel_set == KernelSet.AMX

    def _attend(self) -> Any:
        dtypes = (getattr(torch, name) for name in (self.dtype, self.cache_dtype))
        return group_attention.attend_kernel(KernelSet(self.kernel_set), *dtypes)


_ACTIVATIONS = {
    "silu": activations._silu_mul,
    "gelu_tanh": activations._gelu_tanh_mul,
    "gelu": activations._gelu_mul,
}


class RunKernel(NamedTuple):
    """A kernel and the Numba types of its arguments."""

    dispatcher: Any
    arguments: tuple[Any, ...]

    def compile(self) -> None:
        """Read the machine code from disk, or compile and store it."""
        self.dispatcher.compile(self.arguments)

    @property
    def is_cached(self) -> bool | None:
        """True if the machine code is on disk; None without a cache folder."""
        try:
            cache = self.dispatcher._cache
            key = cache._index_key(self.arguments, self.dispatcher.targetctx.codegen())
            return key in cache._cache_file._load_index()
        except AttributeError:  # a cache without storage; or another Numba
            return None


class AheadCompiler:
    """Compiles the kernels of `wanted` that are not on disk, in worker processes.

    Workers end with this process, even if it is killed.
    """

    def __init__(self, wanted: RunKernels) -> None:
        kernels = wanted.all()
        self._kernels = kernels
        self._missing = deque(i for i, each in enumerate(kernels) if each.is_cached is False)
        self._threads: list[Thread] = []
        num_processes = min(num_threads() - 1, MAX_PROCESSES, len(self._missing) - 1)
        for _ in range(num_processes):
            process = start_child(_COMMAND)
            weakref.finalize(self, end_child, process)
            thread = Thread(target=_feed, args=(process, wanted, self._missing), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self, on_compile: Callable[[], None] | None = None) -> None:
        """Compile the kernels that no worker has begun, and wait for the others.

        `on_compile` is called first, if a worker is still compiling.
        """
        if on_compile is not None and any(each.is_alive() for each in self._threads):
            on_compile()
        while self._threads and (index := _next(self._missing)) is not None:
            self._kernels[index].compile()
        for each in self._threads:
            each.join()


@contextmanager
def notify_compiling(on_compile: Callable[[], None]) -> Iterator[None]:
    """Call `on_compile` once, when Numba first compiles a kernel that is not on disk."""
    with event.install_listener("numba:compile", _CompileListener(on_compile)):
        yield


class _CompileListener(event.Listener):  # type: ignore[misc]
    def __init__(self, on_compile: Callable[[], None]) -> None:
        self._on_compile: Callable[[], None] | None = on_compile

    def on_start(self, event: Any) -> None:
        """Call the callback, the first time."""
        on_compile, self._on_compile = self._on_compile, None
        if on_compile is not None:
            on_compile()

    def on_end(self, event: Any) -> None:
        """Do nothing."""


def _panel_codes(key: PanelKey) -> Any:
    """Return the type of a weight in panels."""
    return _codes(panel_type(key.num_bits, is_float=key.is_float, is_shifted=key.is_shifted))


def _codes(chosen: type[CodePlaces]) -> Any:
    """Return the type of a weight: integers, one of which says yes or no."""
    kinds = (types.boolean if name == "rounds" else types.int64 for name in chosen._fields)
    return _tuple(chosen, *kinds)


def _array(element: Any, num_dims: int) -> Any:
    return types.Array(element, num_dims, "C")


def _tuple(named: type, *elements: Any) -> Any:
    return types.BaseTuple.from_types(elements, named)


def _feed(process: "subprocess.Popen[str]", wanted: RunKernels, missing: deque[int]) -> None:
    """Send kernels to a worker, one at a time; an unfinished one is dropped."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError, ValueError):  # the worker ended or was killed
        process.stdin.write(json.dumps(wanted) + "\n")
        while (index := _next(missing)) is not None:
            process.stdin.write(f"{index}\n")
            process.stdin.flush()
            if not process.stdout.readline():
                break
    end_child(process)


def _next(missing: deque[int]) -> int | None:
    try:
        return missing.popleft()
    except IndexError:
        return None
