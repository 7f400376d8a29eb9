"""Compiles the Numba kernels of this package and sets their threads."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.kernels.numba_compiler import KernelCompiler, ReorderedCompiler

# Sums may be reordered, so that dot products become vector code, and a * b + c may fuse. NaN and
# infinity keep their meaning.
FAST_SUMS = frozenset({"reassoc", "contract", "nsz"})
# Nothing may change: what is written is what is computed.
EXACT: frozenset[str] = frozenset()
# Only a * b + c may fuse: every sum keeps the order in which it is written.
CONTRACTED = frozenset({"contract", "nsz"})

# Two things that keep LLVM from vector code, seen here. A division that may raise: hence
# `error_model="numpy"`, by which it gives infinity (a factor of ten for silu). And `a[start + i]`
# where the index might be negative, which Numba would wrap around: loop over slices, from 0 (a
# factor of five for softmax, of eight for silu).

# Waking the other threads takes about 10 us, in which one thread gets through this many elements.
SERIAL_ELEMENTS = 1 << 15


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, on its first call; its `prange` loops run in parallel.

    The machine code is kept on disk, beside the source, else in the user's cache folder; where
    neither can be written it is compiled anew in each process.
    """
    return _compiled(function, parallel=True)


def serial_kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls and that runs in one thread; see `kernel`.

    Without `prange`, `parallel` would make a parallel loop of each `np.zeros`, and compile that.
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
    try:
        compiled = numba.njit(cache=True, **options)(function)
        # Numba takes kept code for fresh if the file of this one function is unchanged. The code
        # holds parts and constants from other files too, so let it compare all of them.
        cache_file = compiled._cache._cache_file
        cache_file._source_stamp = (cache_file._source_stamp, source_digest())
    except (RuntimeError, AttributeError):  # no folder to keep the code in; or another Numba
        return numba.njit(**options)(function)
    return compiled


def inlined(fastmath: frozenset[str] = CONTRACTED) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that only kernels call; its code becomes part of theirs.

    It has no entry from Python and no place on disk of its own: neither would ever be used.

    It is always inlined, so that its bits do not depend on what LLVM considers worth inlining.
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
    """Choose the threads of the next parallel kernel: all, or one where the work is too small.

    The result is the same either way: a task never depends on the thread that runs it.
    """
    numba.set_num_threads(num_threads() if num_elements > SERIAL_ELEMENTS else 1)


@functools.cache
def num_threads() -> int:
    """Return how many threads a kernel may use."""
    return min(cpu_quota(), int(numba.config.NUMBA_NUM_THREADS))


@functools.cache
def source_digest() -> str:
    """Return a digest of all the sources of `pagedrun.kernels` but its environment."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        if path.parent.name != "environment":
            digest.update(path.read_bytes())
    return digest.hexdigest()
