"""The machine and the versions that a report was made with."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.report.record.report_sections import Hardware

PACKAGES = ("pagedrun", "torch", "numba", "transformers")


def describe_hardware(device: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> Hardware:
    """Return what the report says of the machine: enough to compare figures, no host names."""
    return {
        "device": device,
        "processor": _processor(cpuinfo),
        "threads": cpu_quota(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _processor(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@cache  # a package is searched for, which takes milliseconds
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout
        return None
