"""What machine the parts run on."""

import subprocess
from typing import Any

GPU_FACTS = (
    "name,memory.total,driver_version,power.limit,clocks.max.sm,clocks.max.memory,clocks.sm,"
    "clocks.memory,temperature.gpu,utilization.gpu,memory.used"
)


def gpu_facts() -> dict[str, str] | None:
    """Return what nvidia-smi says of the first GPU, None where it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = done.stdout.splitlines()[0].split(",") if done.stdout else []
    return dict(zip(GPU_FACTS.split(","), map(str.strip, values), strict=False))


def describe_machine(gpu: str, device: str) -> dict[str, Any]:
    """Return the machine and the versions that matter here."""
    from importlib.metadata import PackageNotFoundError, version

    from pagedrun.paged.metrics.run_statistics import describe_hardware

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    hardware = describe_hardware(device)
    packages = ("triton", "numpy", "pytest")
    hardware["versions"] |= {package: installed(package) for package in packages}
    return {**hardware, "gpu": gpu, "gpu_before": gpu_facts()}
