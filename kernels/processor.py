"""What the processor is and can do, as far as compiled kernels may use it."""

import functools
import platform
from contextlib import suppress
from pathlib import Path


@functools.cache
def features() -> frozenset[str]:
    """Return LLVM's names of the instructions that compiled kernels may contain.

    `NUMBA_CPU_FEATURES` narrows them, as it narrows what Numba compiles.
    """
    import numba  # here: the command line asks for names of kernel sets, and must be quick
    from llvmlite import binding  # type: ignore[import-untyped]

    host = {name for name, there in binding.get_host_cpu_features().items() if there}
    asked = numba.config.CPU_FEATURES
    if asked is not None:
        host &= {name.removeprefix("+") for name in asked.split(",") if not name.startswith("-")}
    return frozenset(host)


def has_features(*names: str) -> bool:
    """Return whether the processor has all instructions of these names."""
    return features().issuperset(names)


def processor_name() -> str:
    """Return what the processor calls itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    return platform.processor()
