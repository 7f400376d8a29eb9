"""Kernel sets: the instructions that multiply matrices, and features of the processor.

Sums of another order have other bits, so a set is part of what a run's bytes belong to: manifests
and stored prefixes name it, and two machines agree only on the same one.
"""

import ctypes
import functools
import os
import platform
import sys
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

from pagedrun.kernels.partition import ReadOnce
from pagedrun.kernels.quantized_form import CodeKernels

VARIABLE = "PAGEDRUN_KERNEL_SET"

# From the Linux kernel's documentation of AMX: arch_prctl and the number of the tiles' state.
_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_TILE_DATA = 18

# Features by which LLVM cuts loops into vectors.
_DECIDING = frozenset({"amx-bf16", "avx512bf16", "avx512f", "avx2", "fma", "neon", "sve"})


class KernelSet(StrEnum):
    """Instructions for products of bfloat16. All sets multiply float32 alike, unless quantized.

    AMX: tiles, for linear layers and attention. AVX512_BF16: pairs of bfloat16 for attention and
    quantized weights, oneDNN for other linear layers. PORTABLE: float32 for attention, chains of
    fused multiply-adds in float32 for linear layers, as for float32 in every set.
    """

    AMX = "amx"
    AVX512_BF16 = "avx512-bf16"
    PORTABLE = "portable"

    def version_for(self, dtype: str) -> int:
        """Return the version of kernels for a model in `dtype`, raised when their bits change."""
        return 2 if self is KernelSet.AMX and dtype == "bfloat16" else 3

    @property
    def read_once(self) -> ReadOnce:
        """Bounds above which a shared prefix is read once for all of its rows.

        Measured on an Emerald Rapids, 16 query and 8 kv heads of 128, with 64 tokens of each row's
        own. Tiles: level at 4 rows x 256 tokens to 4 x 512, 8 x 128 to 8 x 256; 2.6 times as fast
        at 16 x 512. The others: level at 8 x 256, 4 rows lose at any length.
        """
        return ReadOnce(min_rows=4 if self is KernelSet.AMX else 8, min_work=2048)

    @property
    def code_kernels(self) -> CodeKernels:
        """Kernels for quantized weights."""
        return _CODE_KERNELS[self]

    @property
    def is_supported(self) -> bool:
        """True if processor and system support the instructions."""
        if self is KernelSet.AMX:
            return has_features("amx-tile", "amx-bf16", "avx512f") and _tiles_are_allowed()
        if self is KernelSet.AVX512_BF16:
            return has_features("avx512f", "avx512bf16")
        return True

    @classmethod
    def supported(cls) -> list["KernelSet"]:
        """Return the sets that run here, fastest first."""
        return [each for each in cls if each.is_supported]

    @classmethod
    def best(cls) -> "KernelSet":
        """Return the default set: `PAGEDRUN_KERNEL_SET`, else the fastest.

        Raises `ValueError` as `named` does.
        """
        asked = os.environ.get(VARIABLE)
        return cls.named(asked) if asked else cls.supported()[0]

    @classmethod
    def usable(cls, asked: "KernelSet | None") -> "KernelSet":
        """Return `asked`, or the best set for None. Raises `ValueError` as `named` does."""
        return cls.best() if asked is None else cls.named(asked)

    @classmethod
    def named(cls, name: str) -> "KernelSet":
        """Return a set by its name. Raises `ValueError` for one that does not run here."""
        here = ", ".join(cls.supported())
        if name not in set(cls):
            raise ValueError(f"there is no kernel set {name!r}; this processor runs {here}")
        chosen = cls(name)
        if not chosen.is_supported:
            raise ValueError(f"this processor cannot run the kernel set {name}; it runs {here}")
        return chosen

    def describe(self, dtype: str) -> dict[str, object]:
        """Return the properties that the bits of a model in `dtype` depend on, as JSON values."""
        kernels: dict[str, object] = {
            "kernel_set": self.value,
            "version": self.version_for(dtype),
            "processor_features": sorted(_DECIDING & features()),
            "read_once": [self.read_once.min_rows, self.read_once.min_work],
        }
        if self is KernelSet.AVX512_BF16 and dtype == "bfloat16":  # oneDNN's choice of kernels
            kernels["processor"] = processor_name()
            kernels["onednn_max_cpu_isa"] = os.environ.get("ONEDNN_MAX_CPU_ISA")
            kernels["torch"] = version("torch")
        return kernels


_CODE_KERNELS = {
    KernelSet.AMX: CodeKernels.TILES,
    KernelSet.AVX512_BF16: CodeKernels.PAIRS,
    KernelSet.PORTABLE: CodeKernels.PANELS,
}


@functools.cache
def _tiles_are_allowed() -> bool:
    """Request tile registers from Linux, which saves them only on request."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    return bool(system_call(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA) == 0)


@functools.cache
def features() -> frozenset[str]:
    """Return LLVM's names of the instructions that compiled kernels may contain.

    `NUMBA_CPU_FEATURES` narrows them, as it narrows what Numba compiles.
    """
    import numba  # imported here: the command line needs the names of kernel sets without it
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
    """Return the name of the processor."""
    return _cpuinfo("model name", "CPU part") or platform.processor()


def _cpuinfo(*names: str) -> str:
    """Return the first field of `/proc/cpuinfo` with one of these names, "" without any."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(names):
                return line.partition(":")[2].strip()
    return ""
