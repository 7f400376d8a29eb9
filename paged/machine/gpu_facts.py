"""GpuFacts: the GPU that a run would take, or why there is none."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from pagedrun.paged.execution.devices.device_probe import DRIVER_FILES
from pagedrun.paged.machine.findings import Findings


class GpuFacts(TypedDict):
    """`memory` is in bytes; `why` says why no GPU is used, None where one is."""

    name: str | None
    memory: int | None
    capability: str | None
    why: str | None


def gpu_facts(findings: Findings, driver_files: Iterable[Path] = DRIVER_FILES) -> GpuFacts:
    """Return what torch says of its GPU. Imports torch."""
    nothing: GpuFacts = {"name": None, "memory": None, "capability": None, "why": None}
    try:
        import torch
    except Exception:  # which its version says
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
