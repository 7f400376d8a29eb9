"""LimitFacts: how many threads and how much memory a run may take, and who says so."""

import os
from typing import TypedDict

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.machine.findings import Findings
from pagedrun.paged.planning.memory import HostMemory

VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
LITTLE_MEMORY = 2 * 2**30  # bytes; torch and the demo model take half a gigabyte


class LimitFacts(TypedDict):
    """`threads` compute at once of `cpus`. Memory in bytes, of the machine, of the container in it
    if that is less, and what is available now; None where the system does not say. `environment`
    are the variables about it that the user has set.
    """

    threads: int
    cpus: int
    machine_memory: int | None
    memory: int | None
    available_memory: int | None
    environment: dict[str, str]


def limit_facts(findings: Findings, environment: dict[str, str]) -> LimitFacts:
    """Return the limits of this process; `environment` is that which the user has set."""
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
