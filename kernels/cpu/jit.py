"""Compiles the Numba kernels of this package and sets their threads."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.np.ufunc import parallel

from pagedrun.kernels.code_cache import CachedKernel
from pagedrun.kernels.cpu.recording import current_recorder
from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.kernels.numba_compiler import KernelCompiler, ReorderedCompiler

# Sums may be reordered, so that dot products are vectorized, and a * b + c may fuse. NaN and
# infinity keep their meaning.
FAST_SUMS = frozenset({"reassoc", "contract", "nsz"})
# No transformation is allowed.
EXACT: frozenset[str] = frozenset()
# Only a * b + c may fuse: sums keep the order of the source.
CONTRACTED = frozenset({"contract", "nsz"})

# Two measured obstacles to vectorization. A division that may raise: `error_model="numpy"` returns
# infinity instead (a factor of ten for silu). An index `a[start + i]` that may be negative, which
# Numba would wrap around: loop over slices, from 0 (a factor of five for softmax, eight for silu).

# Waking the other threads takes about 10 us, in which one thread processes this many elements.
SERIAL_ELEMENTS = 1 << 15


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point on its first call; its `prange` loops run in parallel.

    The machine code is stored beside the source, else in the user's cache folder; where neither can
    be written, each process compiles it again.
    """
    return _compiled(function, parallel=True)


def serial_kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point that runs in one thread; see `kernel`.

    Without `prange`, `parallel` would compile a parallel loop for each `np.zeros`.
    """
    return _compiled(function, parallel=False)


def _compiled(function: Callable[..., Any], *, parallel: bool) -> Any:
    options: dict[str, Any] = {
        "parallel": parallel,
        "fastmath": set(CONTRACTED),
        "error_model": "numpy",
        "nogil": True,
        "no_cfunc_wrapper": True,
        "pipeline_class": KernelCompiler,
    }
    # The code contains inlined functions and constants of other files too.
    return _Kernel.of(numba.njit(**options)(function), source_digest())


class _Kernel(CachedKernel):
    """Entry point of which a step that is being recorded notes the calls."""

    def __call__(self, *arguments: Any) -> Any:
        recorder = current_recorder()
        if recorder is None:
            return super().__call__(*arguments)
        return recorder.call(super().__call__, arguments)


def inlined(fastmath: frozenset[str] = CONTRACTED) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for use in kernels only, without an entry from Python or a cache file.

    It is always inlined, so that its bits do not depend on LLVM's inlining decisions.
    """

    def compile_lazily(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {
            "fastmath": set(fastmath),
            "error_model": "numpy",
            "forceinline": True,
            "no_cpython_wrapper": True,
            "no_cfunc_wrapper": True,
        }
        if fastmath is FAST_SUMS:
            options["pipeline_class"] = ReorderedCompiler
        return numba.njit(**options)(function)

    return compile_lazily


def choose_threads(num_elements: int) -> None:
    """Set the number of threads of the next parallel kernel: all, or one for little work.

    The result is the same: a task does not depend on its thread.
    """
    set_threads(num_threads() if num_elements > SERIAL_ELEMENTS else 1)


def set_threads(number: int) -> None:
    """Set the number of threads of the next parallel kernels."""
    numba.set_num_threads(number)
    recorder = current_recorder()
    if recorder is not None:
        # Numba's function takes a lock, to start threads that have been started by now.
        recorder.note_threads(getattr(parallel, "_set_num_threads", numba.set_num_threads), number)


@functools.cache
def num_threads() -> int:
    """Return the number of threads of parallel kernels."""
    return min(cpu_quota(), int(numba.config.NUMBA_NUM_THREADS))


@functools.cache
def source_digest() -> str:
    """Return a digest of the sources of `pagedrun.kernels`, without `environment`."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        if path.parent.name != "environment":
            digest.update(path.read_bytes())
    return digest.hexdigest()
