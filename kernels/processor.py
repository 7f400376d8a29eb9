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


def multiplies_bfloat16() -> bool:
    """Return whether products of bfloat16 are faster here than those of float32."""
    if platform.machine() in ("aarch64", "arm64"):  # LLVM does not name all features of Arm hosts
        return "bf16" in _cpuinfo("Features").split()
    return has_features("avx512bf16") or has_features("amx-bf16")


def processor_name() -> str:
    """Return what the processor calls itself."""
    return _cpuinfo("model name", "CPU part") or platform.processor()


def _cpuinfo(*names: str) -> str:
    """Return the first field of `/proc/cpuinfo` with one of these names, "" without any."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(names):
                return line.partition(":")[2].strip()
    return ""
