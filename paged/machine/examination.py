"""Examination of this machine for `pagedrun doctor`.

Versions, processor, GPU, limits, caches and the hub: each part returns its facts for scripts
(bytes, seconds, tokens) and adds sentences to `Findings` about problems and possible improvements.
Torch and Triton are imported only where they are examined.
"""

import importlib
import os
import platform
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, TypedDict

from pagedrun._version import __version__
from pagedrun.kernels.environment.code_folder import SOURCES, private_folder
from pagedrun.kernels.environment.threads import cpu_quota, prepare_environment
from pagedrun.kernels.kernel_set import VARIABLE, KernelSet, features, has_features, processor_name
from pagedrun.kernels.quantized_form import AUTO_INT8
from pagedrun.paged.execution.device_facts import DRIVER_FILES
from pagedrun.paged.planning.memory import HostMemory


class CacheFacts(TypedDict):
    """Folder, its files, and the free bytes of its disk; None if it does not exist."""

    name: str
    path: str | None
    files: int
    bytes: int
    free: int | None


class GpuFacts(TypedDict):
    """`memory`: in bytes; `why`: the reason that no GPU is used, None if one is."""

    name: str | None
    memory: int | None
    capability: str | None
    why: str | None


class HubFacts(TypedDict):
    """`reachable`: None in offline mode, without an attempt. `seconds`: duration of the attempt;
    `why`: the error."""

    endpoint: str
    offline: bool
    reachable: bool | None
    seconds: float | None
    why: str | None


class LimitFacts(TypedDict):
    """`threads`: concurrent threads, of `cpus`. Memory in bytes: of the machine, of the container
    if that is less, and available now; None if unknown. `environment`: variables about threads that
    the user has set."""

    threads: int
    cpus: int
    machine_memory: int | None
    memory: int | None
    available_memory: int | None
    environment: dict[str, str]


class ProcessorFacts(TypedDict):
    """`kernel_set`: used by runs; `kernel_sets`: supported ones. `speed`, `bytes`, `int8`,
    `quantized` and `activations` are sentences."""

    name: str
    features: list[str]
    kernel_set: str | None
    kernel_sets: list[str]
    speed: str
    bytes: str
    int8: str
    quantized: str
    activations: str


class Examination(TypedDict):
    """`versions`: of packages, None for missing ones. `problems`: sentences about failures, each
    with a remedy; `advice`: about possible improvements."""

    versions: dict[str, str | None]
    processor: ProcessorFacts
    limits: LimitFacts
    caches: list[CacheFacts]
    gpu: GpuFacts
    hub: HubFacts
    problems: list[str]
    advice: list[str]


def examine() -> Examination:
    """Return the facts of this machine; takes as long as the import of torch, and 3 s if the hub
    does not answer. Nothing is compiled, downloaded or written."""
    asked = dict(os.environ)  # before it is prepared: as set by the user
    prepare_environment()
    findings = Findings()
    return {
        "versions": versions(findings),
        "processor": processor_facts(findings),
        "limits": limit_facts(findings, asked),
        "caches": cache_facts(findings),
        "gpu": gpu_facts(findings),
        "hub": hub_facts(),
        "problems": findings.problems,
        "advice": findings.advice,
    }


@dataclass(frozen=True, slots=True)
class Findings:
    """Sentences with a fact and a remedy each."""

    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


PACKAGES = ("torch", "triton", "transformers", "numba", "safetensors", "numpy", "llguidance")
OPTIONAL = frozenset({"triton", "llguidance"})  # for GPUs; for structured output
IMPORTED = ("torch", "numba")  # their native libraries may fail to load

Import = Callable[[str], Any]


def versions(
    findings: Findings, packages: tuple[str, ...] = PACKAGES, load: Import = importlib.import_module
) -> dict[str, str | None]:
    """Return the version of each package, None if missing, and add findings.

    `load` imports a package.
    """
    found: dict[str, str | None] = {"pagedrun": __version__, "python": platform.python_version()}
    wanted = _requirements()
    for name in packages:
        found[name] = there = _version(name)
        specifier = wanted.get(name)
        if there is None:
            if name not in OPTIONAL:
                findings.problems.append(f"{name} is not installed: pip install {name}")
        elif specifier is not None and not specifier.contains(there, prereleases=True):
            findings.problems.append(
                f"{name} {there} is not supported (pagedrun needs {specifier}): pip install "
                f"'{name}{specifier}'"
            )
        elif name in IMPORTED:
            _try(name, load, findings)
    return found


def _try(name: str, load: Import, findings: Findings) -> None:
    try:
        load(name)
    except Exception as error:  # missing native libraries raise errors of many types
        findings.problems.append(
            f"{name} cannot be imported ({type(error).__name__}: {str(error)[:200]}): "
            f"pip install --force-reinstall {name}"
        )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements() -> dict[str, Any]:
    """Return the required versions by package; none if they are unknown."""
    try:
        from packaging.requirements import Requirement

        found = [Requirement(each) for each in requires("pagedrun") or []]
    except (ImportError, PackageNotFoundError):
        return {}
    plain = [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {each.name: each.specifier for each in plain}


# Instruction sets of matrix products, by LLVM's names, fastest first.
_SHOWN = ("amx-bf16", "amx-int8", "avx512bf16", "avx512vnni", "avx512f", "avx2", "neon", "sve")
_SPEED = {
    KernelSet.AMX: "bfloat16 on matrix tiles, the fastest set",
    KernelSet.AVX512_BF16: "bfloat16 in pairs for attention, oneDNN for linear layers",
    KernelSet.PORTABLE: "attention and linear layers in float32, on any processor; the slowest set",
}

_QUANTIZED = {
    KernelSet.AMX: "quantized in memory, experts too. Four bits in groups of 128 are 1.1 to 2.3 "
    "times as fast as plain bfloat16 in our measurements",
    KernelSet.AVX512_BF16: "quantized in memory, experts too. Four bits are the fastest: 2.3 to "
    "2.6 times as fast as plain bfloat16 at few rows and 1.1 to 1.6 times at hundreds in our "
    "measurements",
    KernelSet.PORTABLE: "quantized in memory, experts too",
}


def _activations(chosen: KernelSet) -> str:
    """Return a sentence about the inputs of layers with quantized weights."""
    least = AUTO_INT8[chosen.code_kernels]
    groups = f" in groups of at least {least}" if least else ""
    return f"int8 for integer codes{groups}, else exact; --activations exact for all"


def processor_facts(findings: Findings) -> ProcessorFacts:
    """Return the facts of the processor; only its name without Numba."""
    facts: ProcessorFacts = {
        "name": processor_name(),
        "features": [],
        "kernel_set": None,
        "kernel_sets": [],
        "speed": "not known without numba",
        "bytes": "not known without numba",
        "int8": "not known without numba",
        "quantized": "not known without numba",
        "activations": "not known without numba",
    }
    try:
        there = features()
    except Exception:  # numba or LLVM is missing or fails to load; reported by `versions`
        return facts
    facts["features"] = [name for name in _SHOWN if name in there]
    facts["kernel_sets"] = [each.value for each in KernelSet.supported()]
    try:
        chosen = KernelSet.best()
    except ValueError as error:
        findings.problems.append(f"{VARIABLE}: {error}; unset it, or set it to one of these")
        return facts
    facts["kernel_set"] = chosen.value
    facts["speed"] = _SPEED[chosen]
    facts["bytes"] = f"those of {chosen}; use --kernel-set {chosen} for identical output elsewhere"
    facts["int8"] = _int8(chosen)
    facts["quantized"] = _QUANTIZED[chosen]
    facts["activations"] = _activations(chosen)
    if chosen is not KernelSet.supported()[0]:
        findings.advice.append(
            f"{VARIABLE} selects {chosen}; without it, runs use {facts['kernel_sets'][0]}, "
            "which is faster"
        )
    return facts


def _int8(chosen: KernelSet) -> str:
    """Return a sentence about `--quantization int8`, by the choice of `Int8Linear`."""
    if chosen is KernelSet.AMX and has_features("amx-int8"):
        return "the fastest format here: 1.4 to 1.8 times as fast as bfloat16 in our measurements"
    if has_features("avx512f", "avx512vnni"):
        return (
            "on AVX512-VNNI: half the memory of bfloat16, and, without bfloat16 instructions, "
            "linear layers are 1.5 to 3 times as fast in our measurements"
        )
    return "half the memory of bfloat16; linear layers are 1.1 to 1.5 times as fast on AVX2"


VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
LITTLE_MEMORY = 2 * 2**30  # bytes; torch and the demo model take half a gigabyte


def limit_facts(findings: Findings, environment: dict[str, str]) -> LimitFacts:
    """Return the limits of this process; `environment`: as set by the user."""
    threads, cpus = cpu_quota(), os.cpu_count() or 1
    total, available = _memory()
    asked = environment.get("OMP_NUM_THREADS")
    if asked is not None and threads > cpus:
        findings.advice.append(
            f"OMP_NUM_THREADS is {asked}, but there are only {cpus} CPUs, so threads wait "
            "for each other; unset it"
        )
    if available is not None and available < LITTLE_MEMORY:
        findings.advice.append(
            f"only {available / 2**30:.1f} GiB of memory are available; end other programs, or "
            "raise the container's limit"
        )
    return {
        "threads": threads,
        "cpus": cpus,
        "machine_memory": _machine_memory(),
        "memory": total,
        "available_memory": available,
        "environment": {name: environment[name] for name in VARIABLES if name in environment},
    }


def _memory() -> tuple[int | None, int | None]:
    try:
        memory = HostMemory.read()
    except (OSError, KeyError, ValueError):  # not Linux
        return None, None
    return memory.total, memory.available


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def gpu_facts(findings: Findings, driver_files: Iterable[Path] = DRIVER_FILES) -> GpuFacts:
    """Return the facts of torch's GPU. Imports torch."""
    nothing: GpuFacts = {"name": None, "memory": None, "capability": None, "why": None}
    try:
        import torch
    except Exception:  # reported by `versions`
        return {**nothing, "why": "torch cannot be imported"}
    has_driver = any(path.exists() for path in driver_files)
    if torch.version.cuda is None and torch.version.hip is None:
        why = f"this torch ({torch.__version__}) is built without CUDA"
        if has_driver:
            findings.advice.append(
                f"a GPU driver is installed, but {why}: install a torch with CUDA "
                "(https://pytorch.org/get-started)"
            )
        return {**nothing, "why": why}
    if not torch.cuda.is_available():
        if has_driver:
            findings.advice.append(
                "a GPU driver is installed, but torch finds no GPU: check that the driver is "
                f"recent enough for CUDA {torch.version.cuda}, and CUDA_VISIBLE_DEVICES"
            )
        return {**nothing, "why": "torch finds no GPU"}
    _check_triton(findings)
    return _described(torch.cuda.get_device_properties(0))


def _check_triton(findings: Findings) -> None:
    try:
        import triton  # noqa: F401
    except Exception as error:
        findings.problems.append(
            f"there is a GPU, but its kernels need Triton, which cannot be imported ({error}): "
            "pip install triton"
        )


def _described(properties: Any) -> GpuFacts:
    return {
        "name": properties.name,
        "memory": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "why": None,
    }


TIMEOUT = 3.0  # seconds


def hub_facts(
    ask: Callable[[str], None] | None = None,
    timeout: float = TIMEOUT,
    *,
    offline: bool | None = None,
) -> HubFacts:
    """Return whether the hub answers within `timeout` seconds. `ask` raises `OSError` if not.

    `offline`: skip the attempt; None follows HF_HUB_OFFLINE.
    """
    from huggingface_hub import constants  # here: it takes a moment

    facts: HubFacts = {
        "endpoint": constants.ENDPOINT,
        "offline": bool(constants.HF_HUB_OFFLINE) if offline is None else offline,
        "reachable": None,
        "seconds": None,
        "why": None,
    }
    if facts["offline"]:
        return {**facts, "why": "HF_HUB_OFFLINE is set: only models in the cache are used"}
    began = time.monotonic()
    why = _asked(ask or _ask, facts["endpoint"], timeout)
    seconds = round(time.monotonic() - began, 3)
    return {**facts, "reachable": why is None, "seconds": seconds, "why": why}


def _asked(ask: Callable[[str], None], endpoint: str, timeout: float) -> str | None:
    """Call `ask` in a thread, since name resolution has no timeout; return the error."""
    outcome: list[str | None] = []

    def run() -> None:
        try:
            ask(endpoint)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            outcome.append(f"{type(error).__name__}: {reason}")
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(timeout)
    return outcome[0] if outcome else f"no answer within {timeout:g} s"


def _ask(endpoint: str) -> None:
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return  # an answer


LITTLE_SPACE = 2**30  # bytes
NUMBA_FILES = ("*.nbi", "*.nbc")


def cache_facts(findings: Findings) -> list[CacheFacts]:
    """Return the cache folders of runs. Call it with the environment prepared."""
    from huggingface_hub import constants  # here: it takes a moment

    hub = _facts("hub models", Path(constants.HF_HUB_CACHE), ("*",))
    found = [hub, *code_caches()]
    packed = private_folder("packed")
    if packed is not None:
        found.append(_facts("packed weights", packed, ("*.packed",)))
    found.append({"name": "prefix store", "path": None, "files": 0, "bytes": 0, "free": None})
    if not os.access(_numba_folder(), os.W_OK):
        findings.advice.append(
            f"compiled kernels cannot be kept in {_numba_folder()}, so every run compiles "
            "them, which may take a minute; set NUMBA_CACHE_DIR to a writable folder"
        )
    for each in found:
        if each["free"] is not None and each["free"] < LITTLE_SPACE:
            findings.advice.append(
                f"{each['path']}: only {each['free'] / 2**20:,.0f} MiB are free on this disk"
            )
    return found


def code_caches() -> list[CacheFacts]:
    """Return the folders of compiled kernels: for CPUs, and for GPUs if one is set."""
    triton = os.environ.get("TRITON_CACHE_DIR")
    found = [_facts("CPU kernels", _numba_folder(), NUMBA_FILES)]
    return [*found, _facts("GPU kernels", Path(triton), ("*",))] if triton else found


def _numba_folder() -> Path:
    """Return the folder of Numba's compiled code: as set, or beside the source."""
    return Path(os.environ.get("NUMBA_CACHE_DIR", SOURCES))


def _facts(name: str, folder: Path, patterns: tuple[str, ...]) -> CacheFacts:
    sizes = [size for pattern in patterns for size in _sizes(folder, pattern)]
    free = None
    if folder.is_dir():
        free = shutil.disk_usage(folder).free
    return {
        "name": name,
        "path": str(folder),
        "files": len(sizes),
        "bytes": sum(sizes),
        "free": free,
    }


def _sizes(folder: Path, pattern: str) -> Iterator[int]:
    """Yield the bytes of each file, without symbolic links."""
    for path in folder.rglob(pattern):
        try:
            if not path.is_symlink() and path.is_file():
                yield path.stat().st_size
        except OSError:
            continue  # removed meanwhile, or not readable
