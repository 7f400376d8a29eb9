"""Threads, waiting policy of OpenMP and memory of malloc, set before torch and numba are imported.

Both read the variables at import, so this module imports neither.

OpenMP threads that are done spin by default, to catch the next piece of work quickly. torch and
Numba bring an OpenMP library each, so that two pools would spin against each other, and against
other programs on the same CPUs. Hence passive waiting, and not more threads than the container
may use.

Measured on two cores, Zen 5: 4 x (oneDNN bfloat16 linear 512 x 512, add_rms_norm, decode_attention
over 16 x 500 tokens) with 16 rows; microseconds, medians of 7 over six runs (two of the last line),
on a machine that was never quite idle. "beside": beside two processes that loop forever, where
fair shares would double the time.

                                        alone               beside
    passive, Numba layer "omp"           1,380 to 2,270      2,400 to 7,200, median 4,000
    passive, Numba layer "workqueue"     1,740 to 2,500      4,800 to 5,400
    OpenMP's default, which spins       36,000 to 64,000    71,000 to 128,000

The same from Python, with torch imported first, so that its threads spin while Numba's do not: as
fast alone, 4 to 40 times as long beside a process with two busy threads. It is too late to change
that then; `prepare_environment` warns.

"omp" wakes its threads in 12 us where "workqueue" takes 31, so it is taken where its library
exists (slim containers may lack it).

A virtual machine may take much longer: on two processors of an Ice Lake server, a call of two
threads took 60 to 160 us more than one, several times what a small product takes. So Numba's
threads, and only these, spin for up to `SPINS` iterations (0.2 to 0.5 ms) before they sleep: a
decode step of a model of 135M parameters took 27.5 ms instead of 42.2, and 36.6 with 3,000.
"""

import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import CDLL

from pagedrun.kernels.environment.cgroup import ControlGroup, control_groups
from pagedrun.kernels.environment.code_folder import keep_code_private

SPINS = 10_000
KEPT_BYTES = 64 * 2**20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_OF_MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def cpu_quota() -> int:
    """Return the number of threads that may compute at once, at least 1.

    `OMP_NUM_THREADS` decides where the user has set it; otherwise the smallest of the CPUs this
    process may run on and the quota of its container (cgroup v2 or v1), rounded up.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, min([_num_cpus(), *map(math.ceil, _cgroup_quotas())]))


def prepare_environment() -> None:
    """Set the environment variables of torch, numba and triton, before any is imported, and keep
    freed memory.

    Variables set by the user stay. Warns if torch is imported already: its threads spin.
    """
    if "torch" in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        warnings.warn(
            "torch was imported before pagedrun's engine, so its threads wait by spinning, and "
            "beside other busy programs a run may take many times as long; "
            "set OMP_WAIT_POLICY=passive, or write `from pagedrun import LLM` before torch",
            RuntimeWarning,
            stacklevel=3,
        )
    threads = str(cpu_quota())
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    os.environ.setdefault("NUMBA_NUM_THREADS", threads)
    os.environ.setdefault("NUMBA_THREADING_LAYER", _threading_layer())
    _keep_freed_memory()
    keep_code_private()


def _keep_freed_memory() -> None:
    """Let glibc keep up to `KEPT_BYTES` of freed memory.

    By itself it gives activations of more than a few megabytes back to the system after each
    operation. The next one then waits for the kernel to clear each of their pages: vectors of 100
    texts took 15 % longer (all-MiniLM-L6-v2 in float32, two processors of a virtual machine,
    363,000 page faults for 12,000).
    """
    if any(name in os.environ for name in _OF_MALLOC):
        return  # the user has decided
    with suppress(AttributeError, OSError):  # another library, which decides by itself
        mallopt = CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES // 2)  # the largest that it takes
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def configure() -> None:
    """Set the number of threads of torch and numba, if they are imported."""
    threads = cpu_quota()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if "numba" in sys.modules:
        numba = sys.modules["numba"]
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        _forbid_nesting()


def _forbid_nesting() -> None:
    """Disable nested parallel regions of OpenMP.

    Numba, when it starts its threads, allows it for the whole process, in the library that torch
    uses as well. A torch op that multiplies matrices in parallel then starts threads anew for each
    of them: scaled_dot_product_attention took 7 times as long (bfloat16, 2 threads).
    """
    if "OMP_MAX_ACTIVE_LEVELS" in os.environ or "OMP_NESTED" in os.environ:
        return  # the user has decided
    with suppress(AttributeError, OSError):  # no OpenMP, or one that does not say
        CDLL(None).omp_set_max_active_levels(1)


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threading_layer() -> str:
    """Return "omp" if numba's OpenMP library is available, else "workqueue".

    The library is loaded here, and so reads a number of spins that torch's copy does not see.
    """
    with _variable("GOMP_SPINCOUNT", str(SPINS)):
        try:
            CDLL("libgomp.so.1.0.0" if sys.platform == "linux" else "libomp.dylib")
        except OSError:
            return "workqueue"
    return "omp"


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for a while, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _cgroup_quotas() -> Iterator[float]:
    """Yield the CPU quota of this process's control group and of each group around it."""
    for group in control_groups("cpu"):
        quota = _quota_v2(group) if group.version == 2 else _quota_v1(group)
        if quota is not None:
            yield quota


def _quota_v2(group: ControlGroup) -> float | None:
    try:
        quota, period = (group.read("cpu.max") or "").split()
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # no such file; or "max", which is no limit
        return None


def _quota_v1(group: ControlGroup) -> float | None:
    quota, period = group.read_int("cpu.cfs_quota_us"), group.read_int("cpu.cfs_period_us")
    if quota is None or not period:
        return None
    return quota / period if quota > 0 else None  # -1: no limit
