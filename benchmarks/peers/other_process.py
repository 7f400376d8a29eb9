"""Programs of peers, which run in processes of their own: their places, environment and memory."""

import os
import re
import subprocess
from pathlib import Path

import torch

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.values.errors import UsageError, option

# Set by pagedrun for itself, or pointing at its packages.
NOT_FOR_PEERS = ("OMP_", "GOMP_", "KMP_", "NUMBA_", "PYTHONPATH", "PYTHONHOME")
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
QUESTION_S = 60


def peer_path(name: str, given: Path | None, variable: str, needed: str) -> Path:
    """Return the place of a peer: `given`, or the environment's `variable`.

    Raises `UsageError` if there is none; `needed` describes it in the message.
    """
    text = str(given) if given else os.environ.get(variable)
    if not text:
        raise UsageError(
            f"{option('against')} {name} needs {needed}; name it with {option('peer_path')} or "
            f"{variable} (docs/benchmarks.md shows the installation)"
        )
    path = Path(text).expanduser().absolute()
    if not path.exists():
        place = option("peer_path") if given else variable
        raise UsageError(f"{place} is {path}, which does not exist; it must be {needed}")
    return path


def ask(command: list[str]) -> tuple[int, str]:
    """Run a short command of a peer; return its status and its output.

    A command that cannot be started or takes too long has status -1.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=QUESTION_S,
            env=environment(command[0]),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout


def environment(program: str) -> dict[str, str]:
    """Return the environment of a peer: pagedrun's number of threads, and no downloads.

    Programs beside it, such as a compiler's, come first on the path.
    """
    kept = {name: each for name, each in os.environ.items() if not name.startswith(NOT_FOR_PEERS)}
    path = os.pathsep.join([str(Path(program).absolute().parent), kept.get("PATH", os.defpath)])
    return {**kept, **OFFLINE, "PATH": path, "OMP_NUM_THREADS": str(cpu_quota())}


def require_cpu(name: str, device: torch.device) -> None:
    """Raise `UsageError` on a GPU: peers in processes of their own run on CPUs."""
    if device.type != "cpu":
        raise UsageError(
            f"{option('against')} {name} compares on a CPU only; add {option('device')} cpu"
        )


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty, or a note that there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def failure(text: str) -> str:
    """Return the last exception in what a program printed, or its last line without any.

    An exception may have several lines, and libraries print after it.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if _EXCEPTION.match(line)]
    return " ".join(lines[raised[-1] :])[:MOST_CHARS] if raised else last_line(text)


_EXCEPTION = re.compile(r"[\w.]*(Error|Exception): ")
MOST_CHARS = 400


def peak_memory(process: int) -> int:
    """Return the peak resident bytes of a running process, 0 if unknown."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(each.split()[1]) * 1024 for each in lines if each.startswith("VmHWM")), 0)
